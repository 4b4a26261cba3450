'use strict';
// A run as a few lines of text.

const HEAD = ['calls', 'sent', 'ok', 'other', 'checked', 'p50 us', 'p99 us', 'max us', 'fields/s'];

function table(result) {
  const seconds = result.conditions.duration_s;
  const rows = result.classes.map((entry) => {
    const other = Object.entries(entry.errors).map(([code, count]) => `${code} ${count}`);
    const { p50, p99, max } = entry.latency_us;
    const fields = Math.round((entry.ok * entry.fields) / seconds);
    return [entry.name, entry.sent, entry.ok, other.join(', ') || '-', entry.checked, p50, p99, max, fields].map(
      String,
    );
  });
  const widths = HEAD.map((head, column) => Math.max(head.length, ...rows.map((row) => row[column].length)));
  const line = (row) =>
    row.map((text, column) => (column === 0 ? text.padEnd(widths[0]) : text.padStart(widths[column]))).join('  ');
  const { totals, server_cpu: server, generator } = result;
  const notes = [
    `${totals.ok_per_s} calls/s, ${totals.fields_per_s} fields/s`,
    server ? `engine ${server.us_per_field} us of CPU a field, ${server.cores} cores` : null,
    `Node ${generator.cpu_cores} cores, late by ${generator.lag_p99_us} us (p99)`,
  ];
  const limit = generator.was_bottleneck ? [`NOT THE ENGINE'S FIGURES: ${generator.why}`] : [];
  return [line(HEAD), ...rows.map(line), notes.filter(Boolean).join('; '), ...limit]
    .map((text) => `  ${text}`)
    .join('\n');
}

module.exports = { table };
