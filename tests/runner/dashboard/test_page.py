"""The dashboard of real jobs in a real browser."""

import os
import sys

import pytest

from tests.runner.dashboard.browser import job, pages
from tests.runner.dashboard.jobs import HEAD

pytestmark = pytest.mark.heavy
EVIL = "g\"'<img src=x onerror=alert(1)>\n重み"
PROGRAM = (
    HEAD
    + """
import os
folder, evil = sys.argv[1:3]
step = 0

def there(name):
    return os.path.exists(os.path.join(folder, name))

print("<script>alert('line')</script> \\x1b[31mrot\\x1b[0m", flush=True)
while allreduce("grad", there("stall")) == 0:
    if rank == 1:
        time.sleep(0.004)
    time.sleep(0.002)
    step += 1
    hvd.report(**{"loss": 1.0 / step, evil: step})
    hvd.step()
    if step % 50 == 0:
        print(f"step {step} of rank {rank}", flush=True)
if rank == 1:
    print("x" * 10_000_000, flush=True)
    print("\\u202ea warning \\N{SNOWMAN}", file=sys.stderr, flush=True)
    while not there("go"):
        time.sleep(0.05)
allreduce(evil)
if rank == 1 and there("fail"):
    raise ValueError("planted <b>failure</b>")
"""
)


def started(folder, *flags):
    return job("-np", "2", *flags, sys.executable, "-c", PROGRAM, str(folder), EVIL, PYTHONIOENCODING="utf-8")


def fits(page):
    return page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def cells(page, table):
    rows = page.locator(f"{table} tbody tr").all()
    return [[cell.inner_text() for cell in row.locator("th, td").all()] for row in rows]


def test_the_page_shows_progress_and_failure(tmp_path):
    with pages() as open_page, started(tmp_path) as running:
        page = open_page(running.address)
        phone = open_page(running.address, 360, 740, color_scheme="dark")
        open_page(running.address).close()  # while the job is running
        status = page.get_by_role("status")
        status.get_by_text("The job is running", exact=True).wait_for()

        # Steps, their parts, stragglers.
        page.get_by_text("Rank 1 comes last most often").wait_for()
        page.locator("#stack polygon").nth(3).wait_for()
        page.locator("#rates polyline").wait_for()
        assert int(page.locator("#made").inner_text().replace(",", "")) > 10
        assert float(page.locator("#rate").inner_text().replace(",", "")) > 1
        assert page.locator("#size").inner_text() == "2 on 1 host"
        assert page.locator("#step").inner_text().endswith(" ms")
        assert "% of linear" in page.locator("#scaling").inner_text()
        assert page.locator("#part-compute").inner_text().endswith("%")
        assert page.get_by_role("img", name="Of a step of").count() == 1
        rank0, rank1 = cells(page, "#ranks")
        assert (rank0[:3], rank1[:3]) == (["0", "localhost", "in the job"], ["1", "localhost", "in the job"])
        assert float(rank1[4].rstrip("%")) > float(rank0[4].rstrip("%"))

        # Values reported by the program; names are shown as text.
        names = [row[0] for row in cells(page, "#reported-box")]
        assert names == ["loss", EVIL.replace("\n", " ")]
        page.get_by_role("img", name="loss, now").wait_for()
        # Output of the ranks.
        page.get_by_label("Last lines of rank", exact=True).select_option("0")
        page.get_by_role("log", name="Last lines of rank 0").get_by_text("step 50 of rank 0").wait_for()
        page.get_by_text("<script>alert('line')</script> rot", exact=True).first.wait_for()

        keyboard(page)
        assert fits(page)
        assert fits(phone)
        phone.get_by_text("Rank 1 comes last most often").wait_for()

        # An operation waits.
        (tmp_path / "stall").touch()
        waiting = page.get_by_role("region", name="Waiting: 1 operation")
        waiting.get_by_text("重み").wait_for()
        (wait,) = cells(page, "#waiting")
        assert (wait[0], wait[2], wait[3]) == (EVIL.replace("\n", " "), "1 rank", "rank 1")
        page.get_by_label("Last lines of rank", exact=True).select_option("1")
        page.get_by_text("(10,000,000 bytes)").first.wait_for()
        page.get_by_text("a warning ☃").first.wait_for()
        assert fits(phone)
        page.wait_for_function("document.title === 'Waiting for rank 1 · horovodrun'")
        page.locator("#rate.stale").wait_for()
        assert phone.evaluate("getComputedStyle(document.querySelector('#ranks tbody tr')).display") == "grid"

        # The job fails.
        (tmp_path / "fail").touch()
        (tmp_path / "go").touch()
        assert running.wait() == 1
        for one in (page, phone):
            one.get_by_role("heading", name="The job has failed after").wait_for()
            assert "rank 1 failed first (exit code 1)" in one.get_by_role("status").inner_text()
            assert "ValueError: planted <b>failure</b>" in one.locator("#end-message").inner_text()
            assert fits(one)
        phone.screenshot(path=os.environ.get("SCREENSHOT_PHONE") or str(tmp_path / "phone.png"), full_page=True)
        # The launcher has ended; the page keeps showing the last state.
        last = {row[0]: row[2] for row in cells(page, "#ranks")}
        assert last["1"] == "failed: exit code 1"
        assert not page.locator("#waiting").is_visible()
        page.get_by_role("button", name="Rank 0: show its output").click()
        page.get_by_role("log", name="Last lines of rank 0").get_by_text("step 50 of rank 0").wait_for()
        assert "No step" not in page.locator("#sentence").inner_text()
        assert page.locator("img, #lines script, #ranks script").count() == 0
        assert running.err.count("live page") == 1


def keyboard(page):
    """Assert that Tab reaches every control, in order, and that each has a label."""
    page.get_by_role("columnheader", name="Rank", exact=True).get_by_role("button").focus()
    assert page.locator("#columns th").nth(0).get_attribute("aria-sort") == "ascending"
    page.keyboard.press("Enter")
    assert page.locator("#columns th").nth(0).get_attribute("aria-sort") == "descending"
    assert [row[0] for row in cells(page, "#ranks")] == ["1", "0"]
    reached = []
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate("document.activeElement.getAttribute('aria-label') || document.activeElement.innerText")
        )
    assert reached[:7] == ["Host", "State", "Steps", "Came last", "By", "Data", "Exposed of step"]
    assert reached[7:9] == ["Rank 1: show its output", "Rank 0: show its output"]
    assert reached[10] == "Last lines of rank 0"
    page.get_by_role("button", name="Rank 1: show its output").press("Enter")
    assert page.evaluate("document.activeElement.id") == "lines"
    assert page.get_by_role("log", name="Last lines of rank 1").count() == 1
    # Attributes used by screen readers.
    assert page.locator("html").get_attribute("lang") == "en"
    assert page.get_by_role("heading", level=1).count() == 1
    assert page.get_by_role("main").count() == 1
    assert page.get_by_role("table", name="Each rank").count() == 1
    named = "e.innerText || e.labels?.length || e.hasAttribute('aria-label') || e.hasAttribute('aria-labelledby')"
    controls = "document.querySelectorAll('button, select, section, svg[role=img], [tabindex]')"
    assert page.evaluate(f"[...{controls}].filter(e => !({named})).length") == 0
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))
