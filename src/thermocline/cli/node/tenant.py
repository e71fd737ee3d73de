"""Commands about tenants: create and list.

- A tenant is a folder below the data folder; a running node sees a new tenant at once.
"""

from typing import Annotated

import typer

from thermocline.cli.argument import CommandList, JsonOption
from thermocline.cli.node.node_options import (
    ConfigOption,
    DataOption,
    lake_folder,
    lake_place,
    private_files,
)
from thermocline.cli.terminal.terminal import print_line


def create(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="Lower case letters, digits and underscores."),
    ],
    data: DataOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Create a tenant."""
    from thermocline.cold.tenants import TenantCatalog
    from thermocline.disk import OsDisk
    from thermocline.server.access.audit import Audit

    folder = lake_folder(data, config)
    with private_files():
        TenantCatalog(lake_place(data, config), OsDisk()).create(name)
    Audit(folder).record_action("create tenant", "command line", tenant=name)
    if json:
        from thermocline.cli.terminal.output import print_json

        print_json({"tenant": name})
    else:
        print_line(
            f"created tenant {name}; `thermocline key create --tenant {name}` creates a key for it"
        )


def list_tenants(
    data: DataOption = None, config: ConfigOption = None, json: JsonOption = False
) -> None:
    """List the tenants and how many tables each has."""
    from thermocline.cold.catalog import Catalog
    from thermocline.cold.tenants import TenantCatalog
    from thermocline.disk import OsDisk

    tenants = TenantCatalog(lake_place(data, config), OsDisk())
    listed = []
    for name in tenants:
        catalog = Catalog(tenants.storage(name), lake=tenants.lake, is_read_only=True)
        listed.append({"tenant": name, "tables": len(list(catalog))})
    if json:
        from thermocline.cli.terminal.output import print_json

        print_json({"tenants": listed})
        return
    for one in listed:
        print_line(
            f"{one['tenant']}  {one['tables']} {'table' if one['tables'] == 1 else 'tables'}"
        )


COMMANDS: CommandList = (
    ("create", create, ("thermocline tenant create acme",)),
    ("list", list_tenants, ("thermocline tenant list --json",)),
)
