"""The last step before a server: `python -SE launch.py IDENTITY PARENT SIGNAL PROGRAM [ARGUMENT...]`.

It runs alone, without the package and its dependencies, changes what only the process itself can change, and becomes
the program. IDENTITY says as whom:

- `self`: as the user that starts it;
- `namespace`: as the user nobody inside a user namespace. Postgres refuses to run as root, and as a user without a
  name, and here such a user is nobody to itself, while its files stay its own outside. Nothing on the machine is
  changed for it;
- `nobody`: as the user nobody, where namespaces are not allowed, as in most containers.

SIGNAL, when it is not 0, is what the kernel sends to the program when the thread that started it ends, PARENT being
that thread's process. Linux alone has this.
"""

import ctypes
import os
import pwd
import sys

PR_SET_PDEATHSIG = 1
CLONE_NEWUSER = 0x10000000


def write(path: str, text: str) -> None:
    """Write a file of /proc in one call, as it demands."""
    with open(path, "w", encoding="ascii") as file:  # noqa: PTH123  (pathlib would double the start-up time)
        file.write(text)


def enter_namespace() -> None:
    """Become nobody in a namespace of our own; OSError when that is not allowed."""
    user, group, nobody = os.getuid(), os.getgid(), pwd.getpwnam("nobody")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWUSER) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    write("/proc/self/setgroups", "deny")
    write("/proc/self/uid_map", f"{nobody.pw_uid} {user} 1")
    write("/proc/self/gid_map", f"{nobody.pw_gid} {group} 1")
    if os.geteuid() == 0:
        raise OSError("the namespace maps root to root")


def become_nobody() -> None:
    """Give up root for good."""
    nobody = pwd.getpwnam("nobody")
    os.setgroups([])
    os.setgid(nobody.pw_gid)
    os.setuid(nobody.pw_uid)


def die_with_parent(parent: int, signal_number: int) -> None:
    """Ask for the signal, which a change of identity would have cleared, and see that it is not too late for it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal_number, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != parent:
        sys.exit("the parent process ended before the server started")


def main() -> None:
    """Read the arguments, change the identity, and become the program."""
    identity, parent, signal_number, *command = sys.argv[1:]
    if identity == "namespace":
        enter_namespace()
    elif identity == "nobody":
        become_nobody()
    if int(signal_number):
        die_with_parent(int(parent), int(signal_number))
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
