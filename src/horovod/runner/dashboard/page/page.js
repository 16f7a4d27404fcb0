// Shows what horovodrun sends. Everything from the job is inserted as text only, by textContent.
import {bar, line, shape, stack, strip} from "./charts.js";

const $ = id => document.getElementById(id);
const NAMES = ["data", "compute", "hidden", "exposed"];
const CLASSES = ["data", "compute", "hidden-part", "exposed"];
const KEPT = 200;  // maximum lines of a rank
const STATES = {starting: "starting", running: "runs", training: "in the job", ended: "ended", failed: "failed"};
const PHASES = {starting: "The job is starting", running: "The job is running", failing: "A rank has failed", stopping: "The job is being stopped",
  ending: "The job is ending", ended: "The job has ended well", failed: "The job has failed", stopped: "The job was stopped"};

// ---- formatting ----
const number = v => v === null || v === undefined ? "–" : v.toLocaleString("en", {maximumSignificantDigits: 4});
const short = v => v.toLocaleString("en", {maximumSignificantDigits: 3});
const count = v => v === null || v === undefined ? "–" : v.toLocaleString("en");
const percent = v => v === null || v === undefined ? "–" : `${(v * 100).toFixed(v < 0.1 && v > 0 ? 1 : 0)}%`;
const time = v => v === null || v === undefined ? "–" : v === 0 ? "0" : v < 1e-3 ? `${short(v * 1e6)} µs` : v < 1 ? `${short(v * 1e3)} ms` : `${short(v)} s`;
function clock(seconds) {
  const s = Math.floor(seconds), two = n => String(n).padStart(2, "0");
  return s < 60 ? `${s} s` : s < 3600 ? `${Math.floor(s / 60)}:${two(s % 60)} min` : `${Math.floor(s / 3600)}:${two(Math.floor(s / 60) % 60)} h`;
}
function several(ranks, all) {
  const more = all - ranks.length;
  return `rank${all === 1 ? "" : "s"} ${ranks.join(", ")}${more > 0 ? ` and ${more} more` : ""}`;
}
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

// ---- state ----
let job = {}, now = 0, version = 0, over = false, lost = false, awaited = "", heard = performance.now();
const ranks = new Map();  // by rank: {received data, row, lines}
const steps = {width: 0, rows: new Map()};
const values = new Map();  // by name: {received data, history, chart}

function course(known, told) {
  if (!told) return;
  if (told.width !== known.width) {  // the intervals have become longer, and all rows are sent again
    known.width = told.width;
    known.rows.clear();
  }
  for (const row of told.rows) known.rows.set(row[0], row);
}
const inOrder = known => [...known.rows.values()].sort((a, b) => a[0] - b[0]);

function take(told) {
  if (told.version < version) forget();  // another horovodrun
  version = told.version;
  now = told.now;
  if (told.job) job = told.job;
  for (const one of told.ranks || []) Object.assign(rankOf(one.rank).told, one);
  for (const one of told.lines || []) takeLines(rankOf(one.rank), one);
  course(steps, told.steps);
  for (const one of told.values || []) takeValue(one);
  showJob();
  if (told.waiting) showWaiting(told.waiting);
  if (told.ranks) showRanks(told.ranks);
  for (const one of told.lines || []) showLast(ranks.get(one.rank));
  if ((told.lines || []).some(one => one.rank === chosen)) showLines();
  if (told.said) showSaid(told.said);
  if (told.steps) showSteps();
  if (told.values) showValues(told.values);
}

function forget() {
  ranks.clear(); values.clear(); steps.rows.clear();
  $("ranks").tBodies[0].replaceChildren();
  $("shown").replaceChildren(); $("reported").replaceChildren(); $("said-lines").replaceChildren();
  for (const figure of [...$("charts").children].slice(1)) figure.remove();
}

function rankOf(rank) {
  if (!ranks.has(rank)) ranks.set(rank, {told: {rank}, lines: [], count: 0, now: ""});
  return ranks.get(rank);
}

function takeLines(one, told) {
  const gap = told.count - one.count - told.lines.length;
  if (gap > 0) one.lines.push([0, `… ${count(gap)} lines are not shown`]);
  one.lines.push(...told.lines);
  one.lines.splice(0, one.lines.length - KEPT);
  one.count = told.count;
  one.now = told.now;
}

// ---- job ----
function showJob() {
  const parts = job.parts || {};
  say($("command"), job.command || "");
  say($("size"), job.size === undefined ? "–" : `${count(job.size)} on ${count(job.hosts)} host${job.hosts === 1 ? "" : "s"}`);
  say($("made"), count(job.made));
  say($("rate"), number(job.rate));
  say($("step"), time(parts.step));
  say($("scaling"), parts.exposed === null || !parts.step ? "–" : `${percent(1 - parts.exposed / parts.step)} of linear`);
  say($("elapsed"), clock(job.ended ? job.ended.after : now));
  const quiet = job.stepped === null || job.stepped === undefined ? 0 : now - job.stepped;
  const idle = !job.ended && quiet > Math.max(10, 10 * (parts.step || 0), job.size / 8) ? `No step has ended for ${clock(quiet)}.` : "";
  say($("sentence"), job.ended ? job.sentence || "" : idle);
  for (const name of ["rate", "step", "scaling"]) $(name).classList.toggle("stale", Boolean(idle));
  NAMES.forEach(name => say($(`part-${name}`), parts.step ? `${time(parts[name])}${parts[name] === null ? "" : `, ${percent(parts[name] / parts.step)}`}` : "–"));
  if (job.ended) showEnd();
  showStatus();
}

function showEnd() {
  over = true;
  const {code, message, rank, stopped, after} = job.ended;
  const who = rank === null ? "" : `: rank ${rank} failed first`;
  $("end").hidden = false;
  $("end").classList.toggle("failed", code !== 0);
  say($("end-title"), code === 0 ? `The job has ended well after ${clock(after)}` : stopped ? `The job was stopped after ${clock(after)} (${stopped})`
    : `The job has failed after ${clock(after)}${who} (exit code ${code})`);
  say($("end-message"), message);
}

function showStatus() {
  let text = PHASES[job.phase] || "Connecting to horovodrun …";
  if (job.ended) text = `${$("end-title").textContent}. This is its last state.`;
  else if (lost) text = "horovodrun does not answer any more: this is what was known last";
  else if (performance.now() - heard > 6000) text = `${text}, but horovodrun is silent`;
  say($("status"), text);
  document.title = `${job.ended ? PHASES[job.phase] : lost ? "no answer" : awaited || PHASES[job.phase] || ""} · horovodrun`;
}

function showWaiting(waiting) {
  const [first] = waiting.rows;
  awaited = first ? `Waiting for ${several(first.missing, first.lacking)}` : "";
  showStatus();
  $("waiting").hidden = !waiting.total;
  say($("waiting-title"), `Waiting: ${count(waiting.total)} operation${waiting.total === 1 ? "" : "s"}`);
  say($("why"), waiting.why);
  $("waits").replaceChildren(...waiting.rows.map(wait => {
    const row = element("tr");
    row.append(element("th", wait.name, {scope: "row", dir: "auto", class: "wide"}), element("td", time(wait.age)), element("td", `${wait.ready} rank${wait.ready === 1 ? "" : "s"}`),
      element("td", several(wait.missing, wait.lacking)));
    return row;
  }));
}

function showSteps() {
  const rows = inOrder(steps), parts = job.parts || {};
  const words = parts.step ? `Of a step of ${time(parts.step)}: ${NAMES.map(n => `${{hidden: "computing with communication hidden behind it",
    data: "waiting for data", compute: "computing", exposed: "exposed communication"}[n]} ${time(parts[n])}`).join(", ")}` : "No steps yet";
  stack($("stack"), rows.map(row => [row[0], ...row.slice(2, 6)]), CLASSES, time, clock, words);
  line($("rates"), rows.map(row => [row[0], row[1]]), short, clock, `Steps a second, now ${number(job.rate)}`, true);
}

// ---- reported values ----
function takeValue(told) {
  if (!values.has(told.name)) values.set(told.name, {width: 0, rows: new Map()});
  const known = values.get(told.name);
  course(known, told.course);
  known.told = told;
}

function showValues(changed) {
  $("reported-hint").hidden = true;
  $("reported-box").hidden = false;
  for (const {name} of changed) {
    const known = values.get(name), told = known.told;
    if (!known.cells) {
      const row = element("tr");
      known.cells = [1, 2, 3, 4].map(() => element("td"));
      row.append(element("th", name, {scope: "row", dir: "auto", class: "wide"}), ...known.cells);
      $("reported").append(row);
    }
    [number(told.mean), number(told.least), number(told.most), count(told.ranks)].forEach((text, i) => say(known.cells[i], text));
    if (known.rows.size > 1) showChart(name, known);
  }
}

function showChart(name, known) {
  if (!known.chart) {
    const figure = element("figure");
    known.chart = shape("svg", {class: "chart", role: "img"});
    figure.append(element("figcaption", name, {dir: "auto"}), known.chart);
    $("charts").append(figure);
  }
  line(known.chart, inOrder(known), short, clock, `${name}, now ${number(known.told.mean)}`, false);
}

// ---- ranks ----
const COLUMNS = [
  {title: "Rank", of: one => one.told.rank},
  {title: "Host", of: one => one.told.host},
  {title: "State", of: one => one.told.state},
  {title: "Steps", of: one => one.told.made ?? -1},
  {title: "Came last", of: one => one.told.share ?? -1, down: true},
  {title: "By", of: one => one.told.late ?? -1, down: true},
  {title: "Data", of: one => one.told.parts?.data ?? -1, down: true},
  {title: "Exposed of step", of: one => one.told.parts?.exposed ?? -1, down: true},
  {title: "Last line"},
];
let sorted = 0, down = false, chosen = 0;

COLUMNS.forEach((column, index) => {
  const head = element("th", column.of ? undefined : column.title, {scope: "col"});
  if (column.of) {
    const button = element("button", column.title, {type: "button"});
    button.addEventListener("click", () => {
      down = sorted === index ? !down : !!column.down;
      sorted = index;
      showOrder(true);
    });
    head.append(button);
  }
  $("columns").append(head);
});

function rowOf(one) {
  if (one.row) return one.row;
  const head = element("th", undefined, {scope: "row"});
  const button = element("button", String(one.told.rank), {type: "button", "aria-label": `Rank ${one.told.rank}: show its output`});
  button.addEventListener("click", () => choose(one.told.rank, true));
  head.append(button);
  one.row = element("tr");
  one.cells = ["", "state", "", "", "", "", ""].map((name, i) => element("td", "", {"data-label": COLUMNS[i + 1].title, ...(name ? {class: name} : {})}));
  one.bar = shape("svg", {class: "bar", "aria-hidden": "true"});
  one.step = element("span");
  one.cells[6].append(one.bar, one.step);
  one.last = element("td", "", {class: "mono", dir: "auto", "data-label": COLUMNS[8].title});
  one.row.append(head, ...one.cells, one.last);
  $("ranks").tBodies[0].append(one.row);
  $("shown").append(element("option", String(one.told.rank), {value: one.told.rank}));
  if (one.told.rank === chosen) choose(chosen, false);
  return one.row;
}

function showRanks(changed) {
  const longest = Math.max(...[...ranks.values()].map(one => one.told.parts?.step || 0));
  for (const {rank} of changed) {
    const one = ranks.get(rank), told = one.told, parts = told.parts || {};
    rowOf(one).classList.toggle("failed", told.state === "failed");
    const words = [told.host, `${STATES[told.state] || told.state}${told.end ? `: ${told.end}` : ""}`, count(told.made), percent(told.share),
      told.share ? time(told.late) : "–", time(parts.data)];
    words.forEach((text, i) => say(one.cells[i], text));
    say(one.step, parts.step ? `${time(parts.exposed)} of ${time(parts.step)}` : "–");
    bar(one.bar, NAMES.map(name => parts[name]), CLASSES, longest);
  }
  showOrder(false);
  const shares = [...ranks.values()].sort((a, b) => a.told.rank - b.told.rank).map(one => one.told.share || 0);
  const last = job.last;
  say($("late"), last && last.share ? `Rank ${last.rank} comes last most often: in ${percent(last.share)} of the steps, by ${time(last.seconds)}.`
    : "No rank comes last more often than chance explains.");
  strip($("strip"), shares, `How often each rank came last. ${$("late").textContent}`);
}

function showOrder(asked) {
  [...$("columns").children].forEach((head, i) => i === sorted ? head.setAttribute("aria-sort", down ? "descending" : "ascending") : head.removeAttribute("aria-sort"));
  const body = $("ranks").tBodies[0];
  if (!asked && body.contains(document.activeElement)) return;  // moving its row would lose the focus
  const {of} = COLUMNS[sorted], sign = down ? -1 : 1;
  const order = [...ranks.values()].sort((a, b) => {
    const one = of(a), other = of(b);
    return (one < other ? -sign : one > other ? sign : 0) || a.told.rank - b.told.rank;
  });
  if (order.some((one, i) => body.rows[i] !== one.row)) body.append(...order.map(one => one.row));
}

// ---- output ----
function showLast(one) {
  rowOf(one);
  say(one.last, one.now || (one.lines.length ? one.lines[one.lines.length - 1][1] : ""));
}

function choose(rank, asked) {
  ranks.get(chosen)?.row?.classList.remove("chosen");
  chosen = rank;
  $("shown").value = String(rank);
  ranks.get(rank)?.row?.classList.add("chosen");
  showLines();
  if (asked) $("lines").focus();
}
$("shown").addEventListener("change", () => choose(Number($("shown").value), false));

function lineOf(stream, text) {
  const made = element("p", undefined, {class: stream === 2 ? "stderr" : stream ? "" : "gap"});
  if (stream === 2) made.append(element("span", "stderr: ", {class: "off-screen"}));
  made.append(document.createTextNode(text));
  return made;
}

function follow(box, children) {
  const atEnd = box.scrollTop + box.clientHeight >= box.scrollHeight - 8;
  box.replaceChildren(...children);
  if (atEnd) box.scrollTop = box.scrollHeight;
}

function showLines() {
  const one = ranks.get(chosen);
  if (!one) return;
  say($("counted"), `${count(one.count)} line${one.count === 1 ? "" : "s"} so far`);
  $("lines").setAttribute("aria-label", `Last lines of rank ${chosen}`);
  follow($("lines"), [...one.lines, ...(one.now ? [[1, one.now]] : [])].map(([stream, text]) => lineOf(stream, text)));
}

function showSaid(lines) {
  $("said").hidden = false;
  const box = $("said-lines");
  follow(box, [...box.children, ...lines.map(text => lineOf(1, text))].slice(-KEPT));
}

// ---- updates ----
const news = new EventSource("events");
news.onmessage = event => {
  heard = performance.now();
  lost = false;
  take(JSON.parse(event.data));
  if (over) news.close();
};
news.onerror = () => {
  if (over) return;
  lost = true;
  showStatus();
};
setInterval(() => over || showStatus(), 2000);
new ResizeObserver(() => {
  showSteps();
  for (const [name, known] of values) if (known.chart) showChart(name, known);
}).observe($("charts"));
