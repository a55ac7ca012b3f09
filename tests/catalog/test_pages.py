"""The site as files: its links hold, it needs nothing from outside, it can be read as it is."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest

from contracts import contract, rule
from contracts.catalog import Entry, Subject, catalogue
from contracts.pages import write

VOID = {"meta", "link", "br", "input"}


class Page(HTMLParser):
    """The links, the text, and whatever is wrong with the nesting of one page."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file
        self.links: list[str] = []
        self.assets: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.seen: set[str] = set()
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.seen.add(tag)
        if tag not in VOID:
            self.open.append(tag)
        if tag == "a" and given.get("href"):
            self.links.append(given["href"] or "")
        if tag in ("link", "script", "img"):
            self.assets.append(given.get("href") or given.get("src") or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, (self.file, tag)

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("script", "style"):
            self.text += data


@pytest.fixture(scope="module")
def site(
    tmp_path_factory: pytest.TempPathFactory,
    subjects: dict[str, Subject],
    entries: dict[str, Entry],
) -> dict[str, Page]:
    folder = tmp_path_factory.mktemp("site")
    count = write(list(subjects.values()), list(entries.values()), folder)
    pages = {file.relative_to(folder).as_posix(): Page(file) for file in folder.rglob("*.html")}
    assert len(pages) == count
    return pages


def test_every_contract_and_every_entry_has_a_page(
    site: dict[str, Page], subjects: dict[str, Subject], entries: dict[str, Entry]
) -> None:
    assert len(site) == 1 + len(subjects) + len(entries)
    for entry in entries.values():
        text = site[f"{entry.op}/{entry.slug}.html"].text
        for part in (entry.demand, entry.validation, entry.guard, entry.handler):
            assert part in text


def test_every_element_is_closed(site: dict[str, Page]) -> None:
    assert {page.file: page.open for page in site.values() if page.open} == {}


def test_links_hold(site: dict[str, Page]) -> None:
    dead = [
        (name, link)
        for name, page in site.items()
        for link in page.links
        if not (page.file.parent / link).is_file()
    ]
    assert dead == []


def test_every_page_can_be_reached_from_the_index(site: dict[str, Page]) -> None:
    root = site["index.html"].file.parent
    reached, waiting = set(), [site["index.html"].file]
    while waiting:
        file = waiting.pop().resolve()
        if file not in reached:
            reached.add(file)
            page = site[file.relative_to(root.resolve()).as_posix()]
            waiting += [file.parent / link for link in page.links]
    assert len(reached) == len(site)


def test_nothing_comes_from_outside(site: dict[str, Page]) -> None:
    for page in site.values():
        for address in page.assets:
            local = (page.file.parent / address).is_file() if address else True
            assert address == "data:," or local, (page.file, address)
        assert "//" not in page.file.read_text(encoding="utf-8").partition("<script>")[0]


def test_the_index_can_be_read_without_a_script(
    site: dict[str, Page], entries: dict[str, Entry]
) -> None:
    text = site["index.html"].text
    assert [entry.id for entry in entries.values() if entry.rule not in text] == []


def test_the_picture_shows_every_axis(site: dict[str, Page]) -> None:
    text = site["hunyuan_qkv_rope_pack/index.html"].text
    for part in ("img_q", "bfloat16", "img_len+txt_len", "head_dim/2", "result 2"):
        assert part in text


@contract(
    rule("n < 8 and n > 2", id="<b>", hint="</script><script>alert(1)</script>"),
    rule("n > 1", id="<B>"),
)
def hostile(n: int) -> None:
    """<i>Not</i> italic."""


def test_text_from_a_contract_cannot_become_markup(tmp_path: Path) -> None:
    subject = Subject("hostile", hostile, hostile.contract)
    write([subject], catalogue([subject]), tmp_path)
    pages = [Page(file) for file in tmp_path.rglob("*.html")]
    assert len({page.file.name.lower() for page in pages}) == len(pages) - 1  # two index.html
    for page in pages:
        assert "<b>" not in page.file.read_text().partition("ENTRIES")[0]
        assert page.file.read_text().count("<script>") == (page.file.parent == tmp_path)
        assert "i" not in page.seen
