"""Check that what is vendored is what ``vendor.json`` says: ``--download`` also compares it with the packages of npm.

To add or update a file: change its package, version and path in ``vendor.json``, and run this with ``--update``, which
needs npm. It writes the files, the integrity of the packages and the digests.
"""

import argparse
import base64
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "queuert" / "web" / "dashboard" / "static" / "vendor"
LIST = FOLDER / "vendor.json"


def digest(content: bytes) -> str:
    """The SHA-256 of a file."""
    return hashlib.sha256(content).hexdigest()


def packed(package: str, version: str, directory: Path) -> Path:
    """Download a package of npm, through npm."""
    command = ["npm", "pack", "--silent", f"{package}@{version}"]
    done = subprocess.run(command, cwd=directory, check=True, capture_output=True, text=True)
    return directory / done.stdout.strip().splitlines()[-1]


def integrity(path: Path) -> str:
    """The integrity of a package, as npm publishes it."""
    return "sha512-" + base64.b64encode(hashlib.sha512(path.read_bytes()).digest()).decode()


def contents(path: Path, names: list[str]) -> dict[str, bytes]:
    """Some files of a package."""
    found = {}
    with tarfile.open(path) as archive:
        for name in names:
            member = archive.extractfile(f"package/{name}")
            if member is None:
                raise ValueError(f"{path.name} has no file {name}")
            found[name] = member.read()
    return found


def wrong_files(packages: list[dict[str, Any]]) -> list[str]:
    """What is not as the list says."""
    problems = []
    known = {LIST.name}
    for package in packages:
        for entry in package["files"]:
            known.add(entry["file"])
            path = FOLDER / entry["file"]
            if not path.is_file():
                problems.append(f"{entry['file']}: is missing")
            elif digest(path.read_bytes()) != entry["sha256"]:
                problems.append(f"{entry['file']}: differs from {package['package']} {package['version']}")
    problems += [f"{path.name}: is not in {LIST.name}" for path in FOLDER.iterdir() if path.name not in known]
    return problems


def compare(packages: list[dict[str, Any]], *, update: bool) -> list[str]:
    """Compare with the packages, or write the files and digests that they have."""
    problems = []
    for package in packages:
        with tempfile.TemporaryDirectory() as directory:
            archive = packed(package["package"], package["version"], Path(directory))
            found = integrity(archive)
            files = contents(archive, [entry["from"] for entry in package["files"]])
        if update:
            package["integrity"] = found
        elif found != package["integrity"]:
            problems.append(f"{package['package']}: its integrity is {found}, not {package['integrity']}")
        for entry in package["files"]:
            content = files[entry["from"]]
            if update:
                (FOLDER / entry["file"]).write_bytes(content)
                entry["sha256"] = digest(content)
            elif digest(content) != entry["sha256"]:
                problems.append(f"{entry['file']}: the package has another file")
    return problems


def main() -> int:
    """Check; the exit code."""
    parser = argparse.ArgumentParser(description="Check what is vendored.")
    parser.add_argument("--download", action="store_true", help="compare with the packages of npm as well")
    parser.add_argument("--update", action="store_true", help="write the files of the packages of npm")
    args = parser.parse_args()
    packages = json.loads(LIST.read_text(encoding="utf-8"))
    problems = compare(packages, update=args.update) if args.download or args.update else []
    if args.update:
        LIST.write_text(json.dumps(packages, indent=2) + "\n", encoding="utf-8")
    problems += wrong_files(packages)
    for problem in problems:
        print(f"check_vendor: {problem}")
    if not problems:
        print(f"check_vendor: {len(packages)} packages: passed")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
