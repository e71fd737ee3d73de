"""Installs the systems we compare with, each into a folder of its own.

In:   the name of a peer
Out:  an environment for a process that sees it, and the version that is there

- Two versions of one package live side by side because no peer is installed into this
  environment: each has a folder under the bench's data folder, put on `PYTHONPATH` of its worker.
- Versions are pinned here, in one place. A changed pin is installed anew.
- What a peer needs beside itself is listed with it and installed without dependencies; pyarrow
  and DuckDB come from this environment, so that all contenders share them.
"""

import argparse
import importlib.metadata
import os
import shutil
import subprocess
import sys
from pathlib import Path

import fhvhv

PEERS = {
    "ttf-0.9.0": ["timeseries-table-format==0.9.0"],
    "ttf-0.4.0": ["timeseries-table-format==0.4.0"],
    "deltalake": [
        "deltalake==1.6.6",
        "arro3-core==0.9.1",
        "deprecated==1.3.1",
        "wrapt==2.5.2",
    ],
    "spark-4.2": ["pyspark==4.2.1", "py4j==0.10.9.9"],
}
INSTALLED = "installed.txt"


def folder(peer: str) -> Path:
    """Return where the peer is, or would be, installed."""
    return fhvhv.data_folder() / "peers" / peer


def install(peer: str) -> None:
    """Install the peer unless exactly these versions are already there."""
    target = folder(peer)
    wanted = "\n".join(PEERS[peer])
    marker = target / INSTALLED
    if marker.exists() and marker.read_text() == wanted:
        return
    shutil.rmtree(target, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--target", str(target), *PEERS[peer]], check=True)
    marker.write_text(wanted)


def environment(peer: str | None) -> dict[str, str]:
    """Return the environment of a worker: this one, with the peer's folder in front."""
    variables = dict(os.environ)
    if peer is not None:
        rest = variables.get("PYTHONPATH")
        variables["PYTHONPATH"] = os.pathsep.join([str(folder(peer)), *([rest] if rest else [])])
    return variables


def version(peer: str) -> str:
    """Return the version of the peer's first package as installed in its folder."""
    package = PEERS[peer][0].split("==")[0]
    found = importlib.metadata.distributions(name=package, path=[str(folder(peer))])
    return next(iter(found)).version


def main() -> None:
    """Install every peer."""
    parser = argparse.ArgumentParser(description="Install the systems we compare with.")
    parser.add_argument("--quick", action="store_true", help="print what would be installed")
    quick = parser.parse_args().quick
    for peer, requirements in PEERS.items():
        if quick:
            print(f"{peer}: {' '.join(requirements)}")
        else:
            install(peer)
            print(f"{peer}: {version(peer)}")


if __name__ == "__main__":
    main()
