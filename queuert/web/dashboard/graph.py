"""The graph of a chain: its jobs in a line, blockers above, children below, dependents to the right.

A chain is a line, so the layout is a matter of columns: each job has one, as wide as what is above and below it needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from queuert.jobs import ChainStatus, Job
from queuert.web.dashboard import formats

NODE_WIDTH, NODE_HEIGHT = 172, 48
NOTE = 20
"""The characters that a box has place for in its second line, with its status and without its symbol."""

GAP_X, GAP_Y = 44, 44
MARGIN = 12
MOST = 6
"""As many chains of one job type and status, above or below one job, are drawn one by one."""

ACROSS = 3
"""As many nodes are beside each other above or below a job; the others are in further rows."""

MOST_JOBS = 30
"""The most jobs that are drawn; of a longer chain it is the last ones."""


@dataclass(frozen=True, slots=True)
class Related:
    """A chain that a job waits for, or a job that waits for the chain."""

    id: str
    """Of the chain."""
    type: str
    status: str


@dataclass(frozen=True, slots=True)
class Node:
    """A box: one job or chain, or several of one type and status."""

    x: int
    y: int
    kind: str
    """``job``, ``blocker``, ``child`` or ``dependent``."""
    title: str
    status: str
    note: str
    id: str | None
    """Of the job (kind ``job``) or the chain; None if the box stands for several."""

    @property
    def label(self) -> str:
        """What a screen reader says."""
        return f"{self.kind} {self.title}, {self.status}" + (f", {self.note}" if self.note else "")


@dataclass(frozen=True, slots=True)
class Edge:
    """An arrow, as the path of an SVG."""

    path: str
    kind: str
    """``next``, ``blocker`` or ``child``."""
    active: bool
    """Whether what it leads to waits for what it comes from."""


@dataclass(frozen=True, slots=True)
class Graph:
    """All boxes and arrows, and the size of the picture."""

    nodes: Sequence[Node]
    edges: Sequence[Edge]
    width: int
    height: int
    left_out: int
    """Jobs of the chain before the first one that is drawn."""


def graph_of(
    jobs: Sequence[Job],
    blockers: Mapping[str, Sequence[Related]],
    children: Mapping[str, Sequence[Related]],
    dependents: Sequence[Related],
    *,
    more_dependents: bool = False,
) -> Graph:
    """Return the graph of a chain.

    Args:
        jobs: the jobs of the chain in order.
        blockers: what each job waits for that there was before it, by the id of the job.
        children: what each job has started and waits for.
        dependents: what waits for the chain.
        more_dependents: whether there are others besides.
    """
    shown = jobs[-MOST_JOBS:]
    above = {job.id: _grouped(blockers.get(job.id, ())) for job in shown}
    below = {job.id: _grouped(children.get(job.id, ())) for job in shown}
    rows_above = max((_rows(boxes) for boxes in above.values()), default=0)
    line = MARGIN + rows_above * (NODE_HEIGHT + GAP_Y)
    nodes: list[Node] = []
    edges: list[Edge] = []
    x = MARGIN
    before: Node | None = None
    for job in shown:
        columns = max(1, *(min(ACROSS, len(boxes)) for boxes in (above[job.id], below[job.id])))
        width = columns * NODE_WIDTH + (columns - 1) * (GAP_X // 2)
        node = _job_node(job, x + (width - NODE_WIDTH) // 2, line)
        if before is not None:
            edges.append(_across(before, node))
        for kind, boxes, side in (("blocker", above[job.id], -1), ("child", below[job.id], 1)):
            placed = _placed(boxes, kind, node, side)
            nodes += placed
            edges += [_upright(one, node) for one in placed]
        nodes.append(node)
        before = node
        x += width + GAP_X
    if before is not None:
        after = _stacked(_grouped(dependents), x, line, more=more_dependents)
        nodes += after
        edges += [_across(before, one) for one in after]
    right = max((node.x + NODE_WIDTH for node in nodes), default=MARGIN)
    bottom = max((node.y + NODE_HEIGHT for node in nodes), default=MARGIN)
    return Graph(nodes, edges, right + MARGIN, bottom + MARGIN, shown[0].chain_index if shown else 0)


def _grouped(found: Sequence[Related]) -> list[tuple[Related, int]]:
    """Those of one type and status as one box, if they are many."""
    groups: dict[tuple[str, str], list[Related]] = {}
    for one in found:
        groups.setdefault((one.type, one.status), []).append(one)
    boxes = []
    for members in groups.values():
        boxes += [(members[0], len(members))] if len(members) > MOST else [(one, 1) for one in members]
    return boxes


def _rows(boxes: Sequence[object]) -> int:
    return -(-len(boxes) // ACROSS)


def _job_node(job: Job, x: int, y: int) -> Node:
    ran = ""
    if job.started_at is not None and job.finished_at is not None:
        ran = formats.brief((job.finished_at - job.started_at).total_seconds())
    tries = job.attempt - job.uncounted
    note = ", ".join(part for part in (ran, f"\N{MULTIPLICATION SIGN} {tries}" if tries > 1 else "") if part)
    return Node(x, y, "job", job.type, str(job.status), note, job.id)


def _box(one: Related, count: int, kind: str, x: int, y: int) -> Node:
    if count == 1:
        return Node(x, y, kind, one.type, one.status, _fitting(one.id, one.status), one.id)
    return Node(x, y, kind, f"{count:,} x {one.type}", one.status, "", None)


def _fitting(id: str, status: str) -> str:
    """Return as much of an id as a box has place for beside a status: the begin and the end, which differ."""
    place, line = NOTE - len(status), id.replace("\n", " ")
    return line if len(line) <= place else f"{line[: place - 7]}…{line[-6:]}"


def _placed(boxes: Sequence[tuple[Related, int]], kind: str, job: Node, side: int) -> list[Node]:
    """Rows of boxes above (-1) or below (1) a job, the nearest row first, each centred."""
    found = []
    for row in range(_rows(boxes)):
        part = boxes[row * ACROSS : (row + 1) * ACROSS]
        width = len(part) * NODE_WIDTH + (len(part) - 1) * (GAP_X // 2)
        left = job.x + NODE_WIDTH // 2 - width // 2
        y = job.y + side * (row + 1) * (NODE_HEIGHT + GAP_Y)
        for place, (one, count) in enumerate(part):
            found.append(_box(one, count, kind, left + place * (NODE_WIDTH + GAP_X // 2), y))
    return found


def _stacked(boxes: Sequence[tuple[Related, int]], x: int, line: int, *, more: bool) -> list[Node]:
    """Dependents, one below the other."""
    found = [
        _box(one, count, "dependent", x + GAP_X, line + place * (NODE_HEIGHT + 16))
        for place, (one, count) in enumerate(boxes[:MOST])
    ]
    left = sum(count for _, count in boxes[MOST:])
    if left or more:
        text = f"{left:,}{' or' if more and left else ''} more" if left else "more"
        found.append(Node(x + GAP_X, line + len(found) * (NODE_HEIGHT + 16), "dependent", text, "", "", None))
    return found


def _across(begin: Node, end: Node) -> Edge:
    x, y = begin.x + NODE_WIDTH, begin.y + NODE_HEIGHT // 2
    to_x, to_y = end.x, end.y + NODE_HEIGHT // 2
    middle = (x + to_x) // 2
    path = f"M{x} {y}H{to_x - 2}" if y == to_y else f"M{x} {y}C{middle} {y} {middle} {to_y} {to_x - 2} {to_y}"
    kind = "dependent" if end.kind == "dependent" else "next"
    return Edge(path, kind, end.status == "blocked")


def _upright(other: Node, job: Node) -> Edge:
    """From a blocker or a child to the job that waits for it."""
    x, to_x = other.x + NODE_WIDTH // 2, job.x + NODE_WIDTH // 2
    y, to_y = (other.y + NODE_HEIGHT, job.y - 2) if other.kind == "blocker" else (other.y, job.y + NODE_HEIGHT + 2)
    middle = (y + to_y) // 2
    path = f"M{x} {y}V{to_y}" if x == to_x else f"M{x} {y}C{x} {middle} {to_x} {middle} {to_x} {to_y}"
    return Edge(path, other.kind, other.status == ChainStatus.OPEN)
