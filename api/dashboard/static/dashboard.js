/* What pages do that HTML cannot: draw figures, copy commands, update themselves. Everything is there without it. */
'use strict';

(() => {
  const plotlyAddress = document.currentScript.dataset.plotly;
  const dark = matchMedia('(prefers-color-scheme: dark)');

  // Figures: drawn from the JSON beside them, in the colours of the style sheet.

  const ROLE = /^@(?:([1-8])|(text|muted|reference|good|bad|band))$/;
  const CONFIG = { displayModeBar: false, displaylogo: false, showTips: false, doubleClick: 'reset', scrollZoom: false };
  let revision = 0; // changes when a person chose something else: what was zoomed is then shown whole again
  let loading = null;

  function property(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  /* The same value with every colour role replaced by its colour. */
  function coloured(value) {
    if (typeof value === 'string') {
      const role = ROLE.exec(value);
      return role ? property(role[1] ? `--series-${role[1]}` : `--${role[2]}`) : value;
    }
    if (Array.isArray(value)) return value.map(coloured);
    if (value && typeof value === 'object') {
      return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, coloured(one)]));
    }
    return value;
  }

  /* What all figures have in common. A template of Plotly's: what a figure says itself goes before. */
  function template() {
    const [text, muted, line, surface] = ['--text', '--muted', '--line', '--surface'].map(property);
    const axis = {
      automargin: true, gridcolor: line, linecolor: muted, zerolinecolor: line, tickcolor: muted, ticks: 'outside',
      ticklen: 4, showline: true, title: { standoff: 10, font: { size: 13, color: text } },
      tickfont: { size: 12, color: muted }, minor: { showgrid: false },
    };
    return {
      layout: {
        font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: text },
        paper_bgcolor: 'rgba(0,0,0,0)', plot_bgcolor: 'rgba(0,0,0,0)', xaxis: axis, yaxis: axis,
        colorway: [1, 2, 3, 4, 5, 6, 7, 8].map((i) => property(`--series-${i}`)),
        hoverlabel: { bgcolor: surface, bordercolor: muted, font: { color: text, size: 13 }, align: 'left' },
        legend: { orientation: 'h', x: 0, xanchor: 'left', y: 1.02, yanchor: 'bottom', font: { size: 12, color: text } },
        hovermode: 'closest', dragmode: 'zoom',
      },
    };
  }

  /* Ticks of a logarithmic axis over a decade or more at 1, 2, 5, 10, 20, ... in full: Plotly writes a bare `2` for 20. */
  function logTicks(id, traces) {
    const values = traces.filter((trace) => (trace[`${id[0]}axis`] || id[0]) === id)
      .flatMap((trace) => trace[id[0]] || []).filter((value) => typeof value === 'number' && value > 0);
    let [least, most] = [Infinity, 0];
    for (const value of values) {
      least = Math.min(least, value);
      most = Math.max(most, value);
    }
    const decades = Math.log10(most / least);
    if (!(decades >= 1 && decades <= 12)) return {};
    const ticks = [];
    for (let power = Math.floor(Math.log10(least)) - 1; power <= Math.log10(most) + 1; power += 1) {
      for (const first of decades > 5 ? [1] : decades > 3 ? [1, 3] : [1, 2, 5]) ticks.push(Number(`${first}e${power}`));
    }
    return { tickmode: 'array', tickvals: ticks, ticktext: ticks.map(short) };
  }

  /* 20, 2k, 5M: as Plotly writes them on other axes. */
  function short(value) {
    for (const [size, suffix] of [[1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e3, 'k']]) {
      if (value >= size) return `${value / size}${suffix}`;
    }
    return value < 1e-4 ? value.toExponential() : String(value);
  }

  function withTicks(layout, traces) {
    const axes = Object.entries(layout).map(([key, axis]) => {
      const id = /^([xy])axis(\d*)$/.exec(key);
      if (!id || axis.type !== 'log' || ['dtick', 'tickvals', 'tickmode', 'nticks'].some((name) => name in axis)) {
        return [key, axis];
      }
      return [key, { ...axis, ...logTicks(id[1] + id[2], traces) }];
    });
    return Object.fromEntries(axes);
  }

  function draw(plot) {
    const figure = JSON.parse(plot.parentElement.querySelector('.plot-data').textContent);
    const layout = {
      margin: { l: 56, r: 16, t: 16, b: 44 }, uirevision: revision, ...coloured(withTicks(figure.layout, figure.traces)),
      template: template(), autosize: true, height: figure.height,
    };
    plot.style.height = `${figure.height}px`;
    const first = !plot.classList.contains('js-plotly-plot');
    if (first) plot.replaceChildren();
    Plotly.react(plot, coloured(figure.traces), layout, CONFIG);
    if (!first) return;
    plot.on('plotly_click', (event) => {
      const address = addressOf(event);
      if (address) location.assign(address);
    });
    plot.on('plotly_hover', (event) => plot.classList.toggle('leads-somewhere', Boolean(addressOf(event))));
    plot.on('plotly_unhover', () => plot.classList.remove('leads-somewhere'));
    resizes.observe(plot);
  }

  /* Where a point leads: a path of this service, or nowhere. */
  function addressOf(event) {
    const data = event.points && event.points[0] && event.points[0].customdata;
    const address = Array.isArray(data) ? data[0] : data;
    return typeof address === 'string' && /^\/(?![/\\])/.test(address) ? address : '';
  }

  const resizes = new ResizeObserver((entries) => {
    requestAnimationFrame(() => {
      for (const { target } of entries) {
        const drawn = target.isConnected && target._fullLayout;
        if (drawn && target.clientWidth && Math.abs(target.clientWidth - drawn.width) > 1) Plotly.Plots.resize(target);
      }
    });
  });

  function drawAll() {
    const plots = document.querySelectorAll('figure > .plot');
    if (!plots.length) return;
    if (window.Plotly) plots.forEach(draw);
    else loadPlotly().then(drawAll);
  }

  /* Load Plotly if a page without a figure became one with a figure. */
  function loadPlotly() {
    loading ||= new Promise((done) => {
      const script = document.createElement('script');
      script.src = plotlyAddress;
      script.addEventListener('load', done);
      document.head.append(script);
    });
    return loading;
  }

  dark.addEventListener('change', drawAll);

  // Commands

  function showCopyButtons() {
    document.querySelectorAll('.command > .copy').forEach((button) => { button.hidden = false; });
  }

  document.addEventListener('click', async (event) => {
    const button = event.target.closest('.command > .copy');
    if (!button) return;
    const done = await copy(button.parentElement.querySelector('code'));
    button.textContent = done ? 'Copied' : 'Press Ctrl+C';
    say(done ? 'Copied' : 'The command is selected; press Ctrl+C to copy it.');
    setTimeout(() => { button.textContent = 'Copy'; }, 2000);
  });

  /* Copy an element's text. Where the browser does not let a page do so (HTTP from another host), select it at least. */
  async function copy(element) {
    try {
      await navigator.clipboard.writeText(element.textContent);
      return true;
    } catch {
      const selection = getSelection();
      selection.selectAllChildren(element);
      try {
        return document.execCommand('copy');
      } catch {
        return false;
      }
    }
  }

  function say(sentence) {
    document.getElementById('said').textContent = sentence;
  }

  // Choosing something else, and pages that update themselves. Both replace the view; what a person opened, scrolled to
  // and has the focus on stays.

  const view = () => document.getElementById('view');
  const isUpdate = (event) => (event.detail.requestConfig || event.detail).elt.id === 'view'; // and not a filter's
  let kept = null;

  function beingUsed() {
    const selection = getSelection();
    const selects = !selection.isCollapsed && view().contains(selection.anchorNode);
    const active = document.activeElement;
    return document.hidden || selects || (active && active.closest('.filters') !== null);
  }

  document.addEventListener('htmx:configRequest', (event) => {
    if (isUpdate(event)) {
      if (beingUsed()) event.preventDefault();
      // Said by us, because the browser would answer from its cache and hide that nothing changed.
      else event.detail.headers['If-None-Match'] = `"${view().dataset.version}"`;
      return;
    }
    const trigger = event.detail.triggeringEvent;
    const changed = trigger && trigger.target && trigger.target.name;
    if (changed) event.detail.headers['X-Changed-Filter'] = changed; // it wins over what was chosen before
    for (const [name, value] of [...event.detail.formData]) {
      if (value === '') event.detail.formData.delete(name);
    }
  });

  // A change has asked already when the Enter key or the button submits the form, which is there for want of scripts.
  document.addEventListener('submit', (event) => {
    if (window.htmx && event.target.matches('.filters')) event.preventDefault();
  });

  document.addEventListener('htmx:beforeSwap', (event) => {
    if (isUpdate(event) && event.detail.xhr.status >= 400) {
      event.detail.shouldSwap = false;
      return;
    }
    if (!event.detail.shouldSwap) return;
    if (!isUpdate(event)) revision += 1;
    kept = keep();
  });

  document.addEventListener('htmx:afterSwap', (event) => {
    if (kept) restore(kept);
    kept = null;
    drawAll();
    showCopyButtons();
    if (!isUpdate(event)) say(`Now shown: ${view().querySelector('h1').textContent}`);
  });

  const FOCUSABLE = 'a[href], button, summary, input, select, [tabindex]';

  function keep() {
    const active = document.activeElement;
    const around = active && view().contains(active) ? active.closest('[id]') : null;
    return {
      open: new Map([...view().querySelectorAll('details[id]')].map((one) => [one.id, one.open])),
      scrolled: new Map([...view().querySelectorAll('.table[id] > .scroll')].map((one) => [one.parentElement.id, one.scrollLeft])),
      plots: new Map([...view().querySelectorAll('figure[id] > .js-plotly-plot')].map((one) => [one.parentElement.id, one])),
      focus: around && { id: around.id, index: [...around.querySelectorAll(FOCUSABLE)].indexOf(active) },
    };
  }

  function restore({ open, scrolled, plots, focus }) {
    for (const details of view().querySelectorAll('details[id]')) {
      if (open.has(details.id)) details.open = open.get(details.id);
    }
    for (const scroll of view().querySelectorAll('.table[id] > .scroll')) {
      scroll.scrollLeft = scrolled.get(scroll.parentElement.id) || 0;
    }
    for (const plot of view().querySelectorAll('figure[id] > .plot')) { // drawn ones are changed, which does not flicker
      const { id } = plot.parentElement;
      const drawn = plots.get(id);
      if (drawn) {
        drawn.setAttribute('aria-label', plot.getAttribute('aria-label'));
        plot.replaceWith(drawn);
        plots.delete(id);
      }
    }
    plots.forEach((gone) => { resizes.unobserve(gone); Plotly.purge(gone); });
    const around = focus && document.getElementById(focus.id);
    const target = around && (focus.index < 0 ? around : around.querySelectorAll(FOCUSABLE)[focus.index]);
    if (target) target.focus({ preventScroll: true });
  }

  function mark(stale) {
    const live = view().querySelector('.live');
    if (!live) return;
    const said = live.querySelector('.stale');
    live.classList.toggle('is-stale', stale);
    if (stale && said.hidden) said.textContent = ` · no answer since ${new Date().toISOString().slice(11, 19)} UTC; what is shown is older`;
    said.hidden = !stale;
  }

  document.addEventListener('htmx:sendError', (event) => {
    if (isUpdate(event)) mark(true);
    else say('The service does not answer.');
  });
  document.addEventListener('htmx:responseError', (event) => { if (isUpdate(event)) mark(true); });
  document.addEventListener('htmx:afterRequest', (event) => {
    if (isUpdate(event) && event.detail.xhr.status === 304) mark(false);
  });

  // Start

  let opened = [];
  addEventListener('beforeprint', () => {
    opened = [...document.querySelectorAll('details:not([open])')];
    opened.forEach((one) => { one.open = true; });
  });
  addEventListener('afterprint', () => opened.forEach((one) => { one.open = false; }));

  showCopyButtons();
  drawAll();
})();
