"""The page about runs in Chromium: 3 runs x 100,000 points x 10 metrics."""

import numpy as np
import pytest
from helpers.browser import chromium, errors, open_page, requested, wait_for
from helpers.run_folders import rows_of, write_run

from paceline.callbacks.pictures.panels import place_of
from paceline.tools.report.page import write_report

pytestmark = [pytest.mark.browser, pytest.mark.launch]

POINTS, RUNS = 100_000, 3
NOISY = [f"train/metric_{number}" for number in range(6)]
CHART = "window.paceline.charts[0]"


def curves(run):
    """The columns of a run: noisy ones, a schedule, norms with outliers, throughput."""
    random, steps = np.random.default_rng(run), np.arange(1, POINTS + 1)
    falling = (2.5 + 0.4 * run) * np.exp(-steps / 20_000) + 0.3
    found = {"train/loss": falling + random.normal(0, 0.08, POINTS)}
    found |= {name: falling + random.normal(0, 0.08, POINTS) for name in NOISY}
    found["lr/AdamW"] = 1e-3 * (0.5 + 0.5 * np.cos(steps / POINTS * np.pi))
    found["norm/gradient"] = np.exp(random.normal(0, 0.4, POINTS))
    found["perf/samples_per_second"] = 12_000 + random.normal(0, 500, POINTS)
    return found


def write_rows(path, columns):
    keys = ["step", "epoch", "time", "samples", *columns]
    form = "{{" + ", ".join(f'"{key}": {{}}' for key in keys) + "}}\n"
    steps = np.arange(1, POINTS + 1)
    seconds = np.round(np.cumsum(np.random.default_rng(9).uniform(0.008, 0.012, POINTS)), 3)
    values = [steps, steps // 10_000, seconds, 32 * steps, *columns.values()]
    with path.open("w") as file:
        file.writelines(form.format(*row) for row in zip(*(v.tolist() for v in values), strict=True))


@pytest.fixture(scope="module")
def browser():
    with chromium() as driver:
        yield driver


@pytest.fixture(scope="module")
def planted():
    return [curves(run) for run in range(RUNS)]


@pytest.fixture(scope="module")
def large_page(browser, planted, tmp_path_factory):
    folder = tmp_path_factory.mktemp("large")
    for run, columns in enumerate(planted, 1):
        write_rows(write_run(folder / "net" / str(run)) / "metrics.jsonl", columns)
    return write_report([folder], folder / "report.html")


@pytest.fixture
def opened(browser, large_page):
    prefer(browser, "light")
    return open_page(browser, large_page)


def prefer(browser, scheme):
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


def hover(browser, share):
    """Move over the first chart, to this share of its width; the legend, cell by cell."""
    pointer(browser).move_to_element_with_offset(*at(browser, share)).perform()
    return legend(browser)


def pointer(browser):
    from selenium.webdriver import ActionChains

    return ActionChains(browser, duration=50)


def at(browser, share):
    over = browser.find_element("css selector", ".card .u-over")
    return over, round((share - 0.5) * over.size["width"]), 0


def legend(browser):
    rows = browser.find_elements("css selector", ".card .legend tr")
    return [[cell.text for cell in row.find_elements("css selector", "th, td")] for row in rows[: 1 + RUNS]]


def drag(browser, begin, end):
    """Drag over the first chart; the range that is in view then."""
    before = browser.execute_script("return window.paceline.state.range")
    actions = pointer(browser).move_to_element_with_offset(*at(browser, begin)).click_and_hold()
    actions.move_to_element_with_offset(*at(browser, end)).release().perform()
    changed = f"JSON.stringify(window.paceline.state.range) !== '{before}'.replaceAll(' ', '')"
    wait_for(browser, changed)
    return browser.execute_script("return window.paceline.state.range")


def rounding(values):
    """Half a step of the fewest bits, and the legend's 5 digits."""
    return (values.max() - values.min()) / 2**10 / 2 + 5e-5 * np.abs(values).max()


def test_it_is_small_and_drawn_at_once(browser, large_page, opened):
    size = large_page.stat().st_size
    print(f"{size / 1e6:.2f} MB")
    assert size < 5_000_000
    assert all(ready == in_view for ready, in_view in opened)  # it waited for these and for no other
    assert not all(ready for ready, _ in opened)
    drawn = browser.execute_script("return window.paceline.charts.filter((chart) => chart.ready).length")
    assert drawn >= 2  # those in view; the others follow when they come near it
    assert "reduced from" not in large_page.read_text()
    browser.execute_script("window.scrollTo(0, document.body.scrollHeight)")
    wait_for(browser, "window.paceline.charts.at(-1).ready")
    assert requested(browser) == []
    assert errors(browser) == []


def test_the_legend_has_the_means_under_the_cursor(browser, planted, opened):
    head, *rows = hover(browser, 0.5)
    assert head[0].startswith("step ")
    assert head[0].endswith("(means)")
    step = int(head[0].split()[1].replace(",", ""))
    assert step == pytest.approx(POINTS / 2, rel=0.02)
    for run, (label, value) in enumerate(rows):
        losses = planted[run]["train/loss"]
        assert label == f"net/{run + 1}"
        # The cursor is in the middle of a part of 1/800 of the view.
        near = losses[step - 1 - 60 : step - 1 + 60]
        assert float(value) == pytest.approx(near.mean(), abs=0.02)


def test_every_chart_has_the_planted_values(browser, planted, opened):
    found = browser.execute_async_script("""
        const done = arguments[0];
        const { charts } = window.paceline;
        const each = (values) => Array.from(values).filter((_, i) => i % 499 === 0);
        const sampled = ({ spec, lines }) => [spec.title, each(lines[2].y)];
        Promise.all(charts.map((chart) => chart.load())).then(() => done(charts.map(sampled)));
    """)
    names = {place_of(name).panel: name for name in planted[2]}
    assert sorted(title for title, _ in found) == sorted(names)
    for title, values in found:
        expected = planted[2][names[title]]
        assert np.abs(np.array(values) - expected[::499]).max() <= rounding(expected), title


def test_a_band_goes_from_the_lowest_to_the_highest_value(browser, planted, opened):
    ends = f"{CHART}.view.lines[1].END.filter((value) => value !== undefined)"
    lowest = browser.execute_script(f"return Math.min(...{ends.replace('END', 'low')})")
    highest = browser.execute_script(f"return Math.max(...{ends.replace('END', 'high')})")
    losses = planted[1]["train/loss"]
    assert (lowest, highest) == pytest.approx((losses.min(), losses.max()), abs=rounding(losses))
    low, mean, high = browser.execute_script(
        f"const line = {CHART}.view.lines[1]; return [line.low[400], line.mean[400], line.high[400]]"
    )
    assert low < mean < high


def test_zooming_in_shows_each_point(browser, planted, opened):
    low, high = drag(browser, 0.4, 0.5)
    assert (high - low) == pytest.approx(0.102 * POINTS, rel=0.05)
    low, high = drag(browser, 0.4, 0.5)
    assert browser.execute_script(f"return {CHART}.view.whole")
    shown = browser.execute_script(f"return [{CHART}.view.x, {CHART}.view.lines[1].mean]")
    steps, values = np.array(shown[0]), np.array(shown[1])
    inside = (steps >= low) & (steps <= high)
    assert steps[inside].tolist() == list(range(int(np.ceil(low)), int(np.floor(high)) + 1))
    losses = planted[1]["train/loss"]
    assert np.abs(values - losses[steps.astype(int) - 1]).max() <= rounding(losses)
    head, *rows = hover(browser, 0.3)
    step = int(head[0].removeprefix("step ").replace(",", ""))
    for run, (_, value) in enumerate(rows):
        losses = planted[run]["train/loss"]
        assert float(value) == pytest.approx(losses[step - 1], abs=rounding(losses))
    pointer(browser).double_click(browser.find_element("css selector", ".card .u-over")).perform()
    wait_for(browser, f"window.paceline.state.range[1] > {POINTS}")


def test_zooming_in_shows_each_point_on_an_axis_of_time_too(browser, opened):
    browser.find_element("css selector", "#axis option[value=time]").click()
    wait_for(browser, f"{CHART}.lines[0].x[0] < 0.1")
    drag(browser, 0.4, 0.5)
    low, high = drag(browser, 0.45, 0.47)
    shown = browser.execute_script(f"return {CHART}.view.x")
    assert browser.execute_script(f"return {CHART}.view.whole")
    # A row each 0.01 seconds; all runs have them at the same times, but for the points beside the view.
    assert len(shown) == pytest.approx((high - low) / 0.01, rel=0.02)
    assert browser.execute_script(f"return {CHART}.view.lines[0].shown") == len(shown)


def test_the_cursor_is_in_all_charts(browser, opened):
    hover(browser, 0.25)
    places = browser.execute_script(
        "return window.paceline.charts.filter((chart) => chart.ready).map((chart) => chart.plot.cursor.idx)"
    )
    assert len(places) >= 2
    assert len(set(places)) == 1
    assert places[0] is not None


def test_runs_can_be_hidden(browser, opened):
    browser.find_elements("css selector", ".runs button")[1].click()
    assert [row[0] for row in legend(browser)[1:3]] == ["net/1", "net/3"]
    browser.find_elements("css selector", ".runs button")[1].click()
    assert [row[0] for row in legend(browser)[1:]] == ["net/1", "net/2", "net/3"]


def test_dark_is_dark(browser, large_page, opened):
    light, dark = (5, 128, 91), (61, 219, 162)  # the third run, which is on top
    assert background(browser) == "rgb(246, 247, 249)"
    assert pixels(browser, light) > 300
    assert pixels(browser, dark) < 10
    browser.find_element("id", "theme").click()
    assert background(browser) == "rgb(15, 19, 24)"
    prefer(browser, "dark")
    open_page(browser, large_page)
    assert background(browser) == "rgb(15, 19, 24)"
    assert pixels(browser, dark) > 300
    assert pixels(browser, light) < 10


def test_printing_shows_every_chart_also_those_not_drawn_yet_and_on_white(browser, large_page, opened):
    assert not all(ready for ready, _ in opened)
    browser.find_element("id", "theme").click()
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        found = browser.execute_script("""
            const widths = (paths) => [...paths].map((path) => path.getBBox().width);
            return [...document.querySelectorAll(".card")].map((card) => [
                card.querySelector("svg").getBoundingClientRect().height > 100,
                Math.max(...widths(card.querySelectorAll("svg path"))) > 100,
                card.querySelector(".live").getBoundingClientRect().height,
            ]);
        """)
        scheme = browser.execute_script("return getComputedStyle(document.documentElement).colorScheme")
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
        browser.find_element("id", "theme").click()
    assert found == [[True, True, 0]] * len(opened)
    assert scheme == "light"


def background(browser):
    return browser.execute_script("return getComputedStyle(document.body).backgroundColor")


def pixels(browser, color):
    """How many pixels of the first chart have this colour."""
    return browser.execute_script(
        f"""
        const {{ ctx }} = {CHART}.plot;
        const found = ctx.getImageData(0, 0, ctx.canvas.width, ctx.canvas.height).data;
        let count = 0;
        for (let i = 0; i < found.length; i += 4) {{
            count += arguments[0].every((value, k) => Math.abs(found[i + k] - value) < 6);
        }}
        return count;
        """,
        color,
    )


def test_controls_and_odd_values(browser, tmp_path):
    rows = rows_of([4.0, "nan", 2.0, "inf", 0.0, 1.0], **{"val/</script>": 1.0})
    write_run(tmp_path / "net" / "1", rows)
    open_page(browser, write_report([tmp_path], tmp_path / "report.html"))
    value = "Array.from({}, (value) => value === null ? 'gap' : value)"
    mean = value.format(f"{CHART}.view.lines[0].mean")
    assert browser.execute_script(f"return {mean}") == [4, "gap", 2, "gap", 0, 1]
    browser.find_element("id", "log").click()
    assert browser.execute_script(f"return {mean}") == [4, "gap", 2, "gap", "gap", 1]
    browser.find_element("css selector", "#axis option[value=time]").click()
    assert wait_for(browser, f"{CHART}.view.x[0] === 2 && {CHART}.view.x") == [2, 4, 6, 8, 10, 12]
    browser.execute_script("""
        const slider = document.getElementById("smoothing");
        slider.value = 100;
        slider.dispatchEvent(new Event("input"));
    """)
    smooth = f"{CHART}.view.lines[0].smooth"
    assert wait_for(browser, f"{smooth}[0] !== undefined && {smooth}")[0] == 4
    assert errors(browser) == []
