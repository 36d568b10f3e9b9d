"""Ask for known vulnerabilities of all that is pinned. What could not be asked is said, and never counts as harmless.

Exit code 1: something has a known vulnerability. 3: the service did not answer for some packages.
"""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VULNERABLE, UNKNOWN = 1, 3


def audit(path: Path) -> tuple[list[str], int, int]:
    """Vulnerabilities of what a file pins, how many packages were asked for, and of how many nothing was learnt."""
    command = [sys.executable, "-m", "pip_audit", "--format", "json", "--progress-spinner", "off", "--timeout", "15"]
    command += ["--disable-pip", "--require-hashes", "--requirement", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    try:
        found = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        return [], 0, sum(not line.startswith((" ", "#", "\n")) for line in path.read_text().splitlines() if line)
    reported = [
        f"{one['name']} {one['version']}: {each['id']}, mended in {', '.join(each['fix_versions']) or 'no version yet'}"
        for one in found
        for each in one.get("vulns", ())
    ]
    unknown = sum("skip_reason" in one for one in found)
    return reported, len(found) - unknown, unknown


def main() -> int:
    """Audit each file of requirements."""
    code = 0
    for path in sorted((ROOT / "requirements").glob("*.txt")):
        reported, requested, unknown = audit(path)
        print(f"{path.name}: {requested} packages asked for, {len(reported)} vulnerabilities")
        for line in reported:
            print(f"  {line}")
        if unknown:
            print(f"  of {unknown} packages nothing was learnt: the service is not reachable from here, or has none")
        code = VULNERABLE if reported else code or (UNKNOWN if unknown else 0)
    return code


if __name__ == "__main__":
    sys.exit(main())
