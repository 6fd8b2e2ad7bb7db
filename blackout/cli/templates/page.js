"use strict";
/* Script of pages: curves with zoom and logarithms, a slider over the steps of training, tables that sort, light and dark.
   It reads the JSON of the page and sessionStorage, loads nothing, and inserts text as text. */
(() => {
  const memory = {
    key: "blackout " + document.title,
    all() { try { return JSON.parse(sessionStorage.getItem(this.key)) || {}; } catch { return {}; } },
    get(name) { return this.all()[name]; },
    set(name, value) { try { sessionStorage.setItem(this.key, JSON.stringify({ ...this.all(), [name]: value })); } catch { /* private */ } },
  };
  const svgns = "http://www.w3.org/2000/svg";
  const draw = (parent, tag, given, text) => {
    const made = document.createElementNS(svgns, tag);
    for (const [name, value] of Object.entries(given || {})) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  };
  const make = (tag, given, text) => {
    const made = Object.assign(document.createElement(tag), given || {});
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const formatNumber = (x) => x === 0 ? "0" : Math.abs(x) >= 1e5 || Math.abs(x) < 1e-3 ? x.toExponential(2) : String(+x.toPrecision(5));

  const ago = (seconds) => seconds < 90 ? `${Math.max(0, Math.round(seconds))} s` : seconds < 5400 ? `${Math.round(seconds / 60)} min` : seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} days`;

  /* light and dark */
  const root = document.documentElement;
  try { if (localStorage.getItem("blackout theme")) root.dataset.theme = localStorage.getItem("blackout theme"); } catch { /* private */ }
  document.getElementById("theme").addEventListener("click", () => {
    const dark = (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
    root.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("blackout theme", root.dataset.theme); } catch { /* private */ }
  });

  /* contents: a link for every section */
  document.querySelectorAll("main section h2").forEach((head, number) => {
    head.id = "s" + number;
    document.getElementById("contents").append(make("a", { href: "#s" + number }, head.textContent));
  });

  /* a picture at its full size */
  const large = document.getElementById("large");
  document.querySelectorAll("figure img").forEach((image) => image.addEventListener("click", () => {
    const shown = large.querySelector("img"), factor = image.classList.contains("pixels") ? 2 : 1;
    shown.src = image.src;
    shown.alt = image.alt;
    shown.className = image.className;
    shown.width = image.naturalWidth * factor;
    shown.height = image.naturalHeight * factor;
    large.querySelector("p").textContent = image.closest("figure").querySelector("figcaption").textContent.trim();
    large.classList.remove("actual");
    large.showModal();
  }));
  large.addEventListener("click", (event) => {
    if (event.target.tagName === "IMG") large.classList.toggle("actual"); else large.close();
  });

  /* a slider over the steps of training */
  document.querySelectorAll(".slider").forEach((bar) => {
    const frames = [...bar.parentElement.querySelectorAll(".frame")];
    const [play, slider, caption] = bar.children;
    const show = () => {
      frames.forEach((frame, number) => { frame.hidden = number !== +slider.value; });
      caption.textContent = frames[+slider.value].querySelector("figcaption b").textContent;
      memory.set("frame", +slider.value === frames.length - 1 ? null : +slider.value);
    };
    let timer = null;
    const stop = () => { clearInterval(timer); timer = null; play.textContent = "\u25b6"; };
    play.addEventListener("click", () => {
      if (timer) return stop();
      if (+slider.value === frames.length - 1) slider.value = 0;
      play.textContent = "\u23f8";
      timer = setInterval(() => {
        show();
        if (+slider.value === frames.length - 1) return stop();
        slider.value = +slider.value + 1;
      }, Math.max(120, 4000 / frames.length));
    });
    slider.addEventListener("input", () => { stop(); show(); });
    if (memory.get("frame") != null) { slider.value = memory.get("frame"); show(); }
  });

  /* curves */
  const ticks = (low, high, count) => {
    const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((k) => k * power).find((k) => k >= rough);
    const places = [];
    for (let at = Math.ceil(low / step) * step; at <= high + 1e-9 * step; at += step) places.push(Math.abs(at) < step * 1e-9 ? 0 : at);
    return places;
  };
  const logTicks = (low, high) => {
    const found = [];
    for (let e = Math.floor(low); e <= Math.ceil(high); e++) {
      for (const k of high - low < 1.5 ? [1, 2, 5] : [1]) found.push(e + Math.log10(k));
    }
    const shown = found.filter((at) => at >= low && at <= high);
    return shown.length > 7 ? shown.filter((_, i) => i % Math.ceil(shown.length / 6) === 0) : shown.length > 1 ? shown : ticks(low, high, 4);
  };
  const means = (values, width) => {
    const found = [];
    let sum = 0;
    values.forEach((value, i) => {
      sum += value;
      if (i >= width) sum -= values[i - width];
      found.push(sum / Math.min(i + 1, width));
    });
    return found;
  };

  function panel(curve) {
    const box = make("div", { className: "panel" }), bar = make("header"), tip = make("div", { className: "tip", hidden: true });
    const svg = draw(box, "svg", { role: "img", "aria-label": curve.name });
    const memorised = memory.get("curve " + curve.name) || {};
    const state = { logx: false, logy: false, smooth: true, whole: false, zoom: null, ...memorised };
    const noisy = curve.lines.some((line) => line.noisy);
    const positive = curve.lines.every((line) => line.values.every((v) => v > 0));
    bar.append(make("h3", {}, curve.name));
    const button = (name, title, key) => {
      const made = make("button", { type: "button", title }, name);
      made.setAttribute("aria-pressed", state[key]);
      made.addEventListener("click", () => {
        state[key] = !state[key];
        if (key === "logx") state.zoom = null;
        made.setAttribute("aria-pressed", state[key]);
        keep();
        paint();
      });
      bar.append(made);
    };
    const keep = () => memory.set("curve " + curve.name, state);
    if (noisy) button("smooth", "a running mean over the noisy values", "smooth");
    button("log x", "logarithmic steps", "logx");
    if (positive) button("log y", "logarithmic values", "logy");
    button("\u2922", "wide", "whole");
    box.prepend(bar);
    box.append(tip);

    let view = null;
    function paint() {
      box.classList.toggle("whole", state.whole);
      svg.replaceChildren();
      const width = svg.clientWidth || 400, height = svg.clientHeight || 210;
      const left = 52, right = 10, top = 10, bottom = 26;
      const fx = state.logx ? (x) => Math.log10(Math.max(x, 0.5)) : (x) => x;
      const fy = state.logy ? (y) => Math.log10(y) : (y) => y;
      const lines = curve.lines.map((line) => {
        const smoothed = line.noisy && state.smooth ? means(line.values, Math.max(2, Math.round(line.values.length / 20))) : null;
        return { ...line, x: line.steps.map(fx), y: line.values.map(fy), mean: smoothed && smoothed.map(fy) };
      });
      const xs = lines.flatMap((line) => line.x);
      let [x0, x1] = state.zoom || [Math.min(...xs), Math.max(...xs)];
      if (x0 === x1) { x0 -= 0.5; x1 += 0.5; }
      const inside = lines.flatMap((line) => {
        const main = line.mean || line.y;
        const kept = main.filter((_, i) => line.x[i] >= x0 && line.x[i] <= x1);
        if (!line.mean) return kept;
        /* of the noisy values under a mean, all but the outermost hundredth decide the scale */
        const raw = line.y.filter((_, i) => line.x[i] >= x0 && line.x[i] <= x1).sort((a, b) => a - b);
        const cut = Math.floor(raw.length / 100);
        return kept.concat(raw.slice(cut, raw.length - cut || undefined));
      });
      let y0 = Math.min(...inside), y1 = Math.max(...inside);
      const levels = (curve.levels || []).map(([name, value]) => [name, state.logy ? Math.log10(value) : value]).filter(([, y]) => Number.isFinite(y));
      const span = y1 - y0 || Math.abs(y0) * 0.1 || 1;
      for (const [, y] of levels) { /* lines that are within reach are shown; one far off would flatten the curve */
        if (y > y0 - 1.5 * span && y < y1 + 1.5 * span) { y0 = Math.min(y0, y); y1 = Math.max(y1, y); }
      }
      if (!Number.isFinite(y0)) { y0 = 0; y1 = 1; }
      const room = (y1 - y0 || Math.abs(y0) * 0.1 || 1) * 0.06;
      y0 -= room; y1 += room;
      const px = (x) => left + (x - x0) / (x1 - x0) * (width - left - right);
      const py = (y) => height - bottom - (y - y0) / (y1 - y0) * (height - top - bottom);
      for (const y of state.logy ? logTicks(y0, y1) : ticks(y0, y1, 4)) {
        draw(svg, "line", { class: "grid", x1: left, x2: width - right, y1: py(y), y2: py(y) });
        draw(svg, "text", { x: left - 6, y: py(y) + 4, "text-anchor": "end" }, formatNumber(state.logy ? +(10 ** y).toPrecision(2) : +y.toPrecision(6)));
      }
      for (const x of state.logx ? logTicks(x0, x1) : ticks(x0, x1, Math.max(2, Math.min(7, width / 70)))) {
        draw(svg, "text", { x: px(x), y: height - 8, "text-anchor": "middle" }, formatNumber(state.logx ? +(10 ** x).toPrecision(2) : x));
      }
      const id = "clip" + Math.random().toString(36).slice(2);
      const clip = draw(draw(svg, "defs"), "clipPath", { id });
      draw(clip, "rect", { x: left - 3, y: 0, width: width - left - right + 6, height: height - bottom + 2 });
      const area = draw(svg, "g", { "clip-path": `url(#${id})` });
      let beyond = [0, 0];
      const high = lines.length && py(lines[0].y[lines[0].y.length - 1]) < (top + height - bottom) / 2; /* the end of the curve */
      for (const [name, y] of levels) {
        if (y < y0 || y > y1) { /* outside the plot: shown at its edge */
          const up = y > y1, value = formatNumber(+(state.logy ? 10 ** y : y).toPrecision(4));
          const place = up ? top + 2 + 13 * beyond[0]++ : height - bottom - 6 - 13 * beyond[1]++;
          const side = up === high ? { x: left + 4, "text-anchor": "start" } : { x: width - right - 4, "text-anchor": "end" };
          draw(svg, "text", { ...side, y: place + (up ? 8 : 0) }, `${name} ${value} ${up ? "\u2191" : "\u2193"}`);
          continue;
        }
        draw(area, "line", { class: "level", x1: left, x2: width - right, y1: py(y), y2: py(y) });
        draw(area, "text", { x: width - right - 4, y: py(y) - 4, "text-anchor": "end" }, name);
      }
      const path = (x, y) => x.map((at, i) => (i ? "L" : "M") + px(at).toFixed(1) + " " + py(y[i]).toFixed(1)).join("");
      for (const line of lines) {
        const style = `stroke:var(--c${line.colour % 8})`;
        const main = draw(area, "path", { class: line.mean ? "path pale" : "path", d: path(line.x, line.y) });
        main.style.cssText = style;
        if (line.mean) draw(area, "path", { class: "path", d: path(line.x, line.mean) }).style.cssText = style;
        else if (line.x.length < 40) line.x.forEach((at, i) => { draw(area, "circle", { cx: px(at), cy: py(line.y[i]), r: 2.4 }).style.cssText = `fill:var(--c${line.colour % 8})`; });
      }
      const cursor = draw(svg, "line", { class: "grid", y1: top, y2: height - bottom, visibility: "hidden" });
      const chosen = draw(svg, "rect", { y: top, height: height - top - bottom, fill: "currentColor", opacity: 0.1, visibility: "hidden" });
      view = { left, right, width, px, lines, cursor, chosen, x: (at) => x0 + (at - left) / (width - left - right) * (x1 - x0), state };
    }

    /* hover says values, a drag zooms, two clicks show all */
    let from = null;
    const at = (event) => Math.min(view.width - view.right, Math.max(view.left, event.clientX - svg.getBoundingClientRect().left));
    svg.addEventListener("pointerdown", (event) => { if (event.pointerType === "mouse") { from = at(event); svg.setPointerCapture(event.pointerId); } });
    svg.addEventListener("pointermove", (event) => {
      const here = at(event), x = view.x(here);
      if (from !== null && Math.abs(here - from) > 4) {
        for (const [name, value] of [["x", Math.min(from, here)], ["width", Math.abs(here - from)], ["visibility", "visible"]]) view.chosen.setAttribute(name, value);
      }
      const texts = [];
      let near = null;
      for (const line of view.lines) {
        let best = 0;
        line.x.forEach((value, i) => { if (Math.abs(value - x) < Math.abs(line.x[best] - x)) best = i; });
        near = near === null || Math.abs(line.x[best] - x) < Math.abs(near[0] - x) ? [line.x[best], line.steps[best]] : near;
        texts.push((line.run ? line.run + "  " : "") + formatNumber(line.values[best]));
      }
      view.cursor.setAttribute("x1", view.px(near[0]));
      view.cursor.setAttribute("x2", view.px(near[0]));
      view.cursor.setAttribute("visibility", "visible");
      tip.hidden = false;
      tip.textContent = `step ${near[1].toLocaleString("en")}\n` + texts.join("\n");
      tip.style.top = svg.offsetTop + 8 + "px";
      tip.style.left = view.px(near[0]) > view.width / 2 ? "auto" : svg.offsetLeft + view.px(near[0]) + 10 + "px";
      tip.style.right = view.px(near[0]) > view.width / 2 ? box.clientWidth - svg.offsetLeft - view.px(near[0]) + 10 + "px" : "auto";
    });
    svg.addEventListener("pointerup", (event) => {
      if (from !== null && Math.abs(at(event) - from) > 8) { state.zoom = [view.x(Math.min(from, at(event))), view.x(Math.max(from, at(event)))]; keep(); paint(); }
      else if (view) view.chosen.setAttribute("visibility", "hidden");
      from = null;
    });
    svg.addEventListener("pointerleave", () => { tip.hidden = true; view.cursor.setAttribute("visibility", "hidden"); });
    svg.addEventListener("dblclick", () => { state.zoom = null; keep(); paint(); });
    new ResizeObserver(paint).observe(svg);
    return box;
  }
  document.querySelectorAll(".curves-data").forEach((data) => {
    const content = JSON.parse(data.textContent), place = data.previousElementSibling;
    if (content.runs.length > 1) {
      const legend = make("div", { className: "legend" });
      content.runs.forEach((name, number) => {
        const one = make("span"), mark = make("i");
        mark.style.background = `var(--c${number % 8})`;
        one.append(mark, name);
        legend.append(one);
      });
      place.before(legend);
    }
    place.append(...content.panels.map(panel));
  });

  /* how long ago something changed */
  document.querySelectorAll("[data-since]").forEach((cell) => { cell.textContent = ago(Date.now() / 1000 - cell.dataset.since) + " ago"; });

  /* tables that sort and that are searched */
  const number = (cell) => parseFloat((cell.dataset.value ?? cell.textContent).replace(/,/g, ""));
  document.querySelectorAll("table.sorts").forEach((table, which) => {
    const body = table.tBodies[0], rows = [...body.rows];
    [...table.tHead.rows[0].cells].forEach((cell, i) => { if (rows.some((row) => row.cells[i].classList.contains("number"))) cell.classList.add("number"); });
    const sort = (column, up) => {
      [...table.tHead.rows[0].cells].forEach((cell, i) => { if (i === column) cell.setAttribute("aria-sort", up ? "ascending" : "descending"); else cell.removeAttribute("aria-sort"); });
      const order = (a, b) => {
        const [x, y] = [a.cells[column], b.cells[column]], [u, v] = [number(x), number(y)];
        if (!x.textContent.trim() || !y.textContent.trim()) return !x.textContent.trim() - !y.textContent.trim();
        const by = Number.isNaN(u) || Number.isNaN(v) ? x.textContent.localeCompare(y.textContent, "en", { numeric: true }) : u - v;
        return up ? by : -by;
      };
      body.append(...rows.sort(order));
      memory.set("sort " + which, [column, up]);
    };
    [...table.tHead.rows[0].cells].forEach((cell, column) => {
      const button = make("button", { type: "button", title: "sort" }, cell.textContent);
      cell.replaceChildren(button);
      button.addEventListener("click", () => sort(column, cell.getAttribute("aria-sort") !== "ascending"));
    });
    if (memory.get("sort " + which)) sort(...memory.get("sort " + which));
    const find = make("input", { type: "search", className: "find", placeholder: "filter: words, or name>value" });
    find.setAttribute("aria-label", "filter");
    const heads = [...table.tHead.rows[0].cells].map((cell) => cell.textContent.trim());
    const fits = (row, word) => {
      const match = word.match(/^(.+?)(<=|>=|<|>|=)(.+)$/), column = match ? heads.indexOf(match[1]) : -1;
      if (column < 0) return row.textContent.toLowerCase().includes(word.toLowerCase());
      const value = number(row.cells[column]), limit = parseFloat(match[3]);
      if (match[2] === "=") return row.cells[column].textContent.trim() === match[3] || value === limit;
      return { "<": value < limit, ">": value > limit, "<=": value <= limit, ">=": value >= limit }[match[2]];
    };
    const filter = () => {
      const words = find.value.split(/\s+/).filter(Boolean);
      rows.forEach((row) => { row.hidden = !words.every((word) => fits(row, word)); });
      memory.set("find " + which, find.value);
      table.dispatchEvent(new Event("filtered"));
    };
    find.addEventListener("input", filter);
    table.parentElement.before(find);
    find.value = memory.get("find " + which) || "";
    if (find.value) filter();
  });

  /* sparklines of numbers in a cell */
  document.querySelectorAll("td[data-line]").forEach((cell) => {
    const values = JSON.parse(cell.dataset.line), low = Math.min(...values), high = Math.max(...values);
    const svg = draw(cell, "svg", { viewBox: "0 0 100 26", preserveAspectRatio: "none" });
    const at = (v, i) => `${(i / Math.max(1, values.length - 1) * 100).toFixed(1)} ${(24 - (v - low) / (high - low || 1) * 22).toFixed(1)}`;
    draw(svg, "path", { d: "M" + values.map(at).join("L"), fill: "none", stroke: "currentColor", "stroke-width": 1.5, "vector-effect": "non-scaling-stroke" });
  });

  /* parallel coordinates of a table: an axis for every column of its numbers that differ, a line for every row */
  document.querySelectorAll(".parallel").forEach((place) => {
    const table = document.getElementById(place.dataset.table), svg = draw(place, "svg", { role: "img", "aria-label": "parallel coordinates" });
    const paint = () => {
      svg.replaceChildren();
      const rows = [...table.tBodies[0].rows].filter((row) => !row.hidden);
      const axes = [...table.tHead.rows[0].cells].map((cell, column) => ({ name: cell.textContent, column, setting: "setting" in cell.dataset })).slice(1).sort((a, b) => b.setting - a.setting).map((axis) => {
        const values = rows.map((row) => number(row.cells[axis.column])).filter((value) => !Number.isNaN(value));
        return { ...axis, low: Math.min(...values), high: Math.max(...values) };
      }).filter((axis) => axis.high > axis.low).slice(0, 8);
      place.hidden = axes.length < 2;
      if (place.hidden) return;
      const width = svg.clientWidth || 800, height = 300, gap = (width - 130) / Math.max(1, axes.length - 1);
      const colour = axes[axes.length - 1];
      const y = (axis, value) => 260 - (value - axis.low) / (axis.high - axis.low) * 215;
      for (const row of rows) {
        const points = axes.map((axis, i) => [65 + i * gap, number(row.cells[axis.column]), axis]).filter(([, value]) => !Number.isNaN(value));
        const share = (number(row.cells[colour.column]) - colour.low) / (colour.high - colour.low);
        const line = draw(svg, "path", { class: "path", d: points.map(([x, value, axis], i) => (i ? "L" : "M") + x + " " + y(axis, value)).join("") });
        line.style.cssText = `stroke: color-mix(in oklab, var(--c1) ${Number.isNaN(share) ? 50 : 100 * (1 - share)}%, var(--c0)); opacity: .8`;
        draw(line, "title", {}, row.cells[0].textContent.trim());
        line.addEventListener("pointerenter", () => { row.classList.add("on"); line.style.strokeWidth = 4; });
        line.addEventListener("pointerleave", () => { row.classList.remove("on"); line.style.strokeWidth = 1.8; });
      }
      axes.forEach((axis, i) => {
        const x = 65 + i * gap;
        draw(svg, "line", { class: "grid", x1: x, x2: x, y1: 45, y2: 260 });
        draw(svg, "text", { x, y: i % 2 ? 14 : 28, "text-anchor": "middle" }, axis.name.length > 26 ? "\u2026" + axis.name.slice(-25) : axis.name);
        draw(svg, "text", { x, y: 41, "text-anchor": "middle" }, formatNumber(axis.high));
        draw(svg, "text", { x, y: 276, "text-anchor": "middle" }, formatNumber(axis.low));
      });
      svg.setAttribute("height", height);
    };
    table.addEventListener("filtered", paint);
    new ResizeObserver(paint).observe(place);
  });

  /* the page of a run that trains reloads at its scroll position; without news it is marked as stale */
  const refresh = parseFloat(document.body.dataset.refresh), written = parseFloat(document.body.dataset.written);
  if (refresh) {
    const pill = document.getElementById("state"), first = pill && pill.textContent;
    const age = () => Date.now() / 1000 - written;
    const update = () => {
      const seconds = age(), stale = seconds > Math.max(90, 20 * refresh);
      if (!pill) return;
      pill.classList.toggle("stale", stale);
      pill.classList.toggle("live", !stale);
      const since = ago(seconds);
      pill.textContent = stale ? `no news for ${since}: stopped, or in a long step` : `${first}, ${since} ago`;
    };
    memory.set("scroll", memory.get("scroll") || 0);
    const back = memory.get("scroll");
    if (back) scrollTo({ top: back, behavior: "instant" });
    addEventListener("scroll", () => memory.set("scroll", scrollY));
    update();
    setInterval(update, 1000);
    const reload = () => {
      const busy = large.open || document.hidden || [...document.querySelectorAll(".slider button")].some((b) => b.textContent !== "\u25b6");
      if (busy) setTimeout(reload, 1000); else location.reload();
    };
    setTimeout(reload, 1000 * Math.max(refresh, Math.min(60, age() / 10)));
  }
})();
