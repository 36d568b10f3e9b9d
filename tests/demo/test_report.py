"""The demo's findings, from rows to Markdown."""

from queuert.demo.report import Library, Module, render, resolve, strongly_connected, summary

LIBRARY = Library(
    modules=[Module("a", 10, 100, 1), Module("b", 300, 900, 20), Module("b.c", 5, 50, 0), Module("d", 1, 9, 0)],
    imports=[
        ("a", "b.c.name", True),
        ("b", "a", True),
        ("b.c", "b", True),
        ("d", "b.name", True),
        ("d", "b.other", False),
        ("d", "sys", True),
        ("a", "d", False),
        ("a", "a.own", True),
    ],
    unreadable={"bad": "SyntaxError: two\nlines"},
)


def test_a_name_resolves_to_the_module_that_it_is_in() -> None:
    known = {"os", "json", "json.decoder"}
    assert resolve("json.decoder.Decoder", known) == "json.decoder"
    assert resolve("json.dumps", known) == "json"
    assert resolve("os.path.join", known) == "os"
    assert resolve("xml.dom.minidom", known) == "xml"


def test_importers_count_modules_and_not_statements() -> None:
    assert LIBRARY.importers == {"b": 2, "b.c": 1, "a": 1, "sys": 1, "d": 1}


def test_cycles_are_those_of_loading() -> None:
    assert LIBRARY.cycles == [["a", "b", "b.c"]]


def test_components_of_a_graph() -> None:
    graph = {"1": ["2"], "2": ["3"], "3": ["1", "4"], "4": ["5"], "5": ["4"], "6": ["6"], "7": ["1"]}
    assert sorted(sorted(group) for group in strongly_connected(graph)) == [["1", "2", "3"], ["4", "5"], ["6"], ["7"]]


def test_a_long_chain_of_imports_needs_no_recursion() -> None:
    length = 20_000
    ring = {str(number): [str((number + 1) % length)] for number in range(length)}
    assert [len(group) for group in strongly_connected(ring)] == [length]


def test_the_summary_counts() -> None:
    report = summary(LIBRARY, "/tmp/report.md")
    assert (report.files, report.lines, report.symbols, report.imports) == (4, 316, 21, 8)
    assert (report.unreadable, report.cycles, report.path) == (1, 1, "/tmp/report.md")
    assert "b (300 lines)" in report.text


def test_the_report_is_markdown_with_all_findings() -> None:
    text = render(LIBRARY)
    assert "| b | 300 | 20 |" in text
    assert "| b | 2 |" in text
    assert "- a b b.c\n" in text
    assert "- bad: SyntaxError: two lines\n" in text


def test_an_empty_library_has_a_report() -> None:
    nothing = Library([], [], {})
    assert summary(nothing, "").files == 0
    assert "none" in render(nothing)
