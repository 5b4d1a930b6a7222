# Prints a table that compares both ways, from the summaries of the four programs.
def summary: map(select(.event == "summary")) | last;
def pad(n): tostring | if length < n then " " * (n - length) + . else . end;
def round1: . * 10 | round / 10;
def round2: . * 100 | round / 100;
def row(name; usual; busbar; ratio):
  (name + " " * (46 - (name | length))) + (usual | pad(12)) + (busbar | pad(12)) + (ratio | pad(10));

($bs | summary) as $tx | ($br | summary) as $rx
| $us[0] as $ut | $ur[0] as $ur
| ($rx.sinks | map(select(.name == "right")) | first) as $right
| {
    rate: [$ur.bytes / 1e6 / $ut.seconds, $right.bytes / 1e6 / $tx.seconds],
    cpu: [($ut.cpu_seconds + $ur.cpu_seconds) / ($ur.bytes / 1e9),
          ($tx.cpu_seconds + $rx.cpu_seconds) / ($right.bytes / 1e9)],
    busy: [$ub / 100 / ($ur.bytes / 1e9), $bb / 100 / ($right.bytes / 1e9)],
    copies: [($ut.copied + $ur.copied) / $ur.bytes, ($tx.copied + $rx.copied) / $right.bytes],
    p50: [$ur.latency_p50 / 1e3, $right.latency_p50 / 1e3],
    p99: [$ur.latency_p99 / 1e3, $right.latency_p99 / 1e3]
  }
| row(""; "usual"; "Busbar"; "ratio"),
  row("throughput, MB/s"; .rate[0] | round1; .rate[1] | round1; .rate[1] / .rate[0] | round2),
  row("processor time of both programs, s/GB"; .cpu[0] | round1; .cpu[1] | round1; .cpu[0] / .cpu[1] | round2),
  row("processor time of the whole machine, s/GB"; .busy[0] | round1; .busy[1] | round1; .busy[0] / .busy[1] | round2),
  row("bytes copied for each one delivered"; .copies[0] | round2; .copies[1] | round2; ""),
  row("latency, sample to verified, ms: half within"; .p50[0] | round1; .p50[1] | round1; .p50[0] / .p50[1] | round2),
  row("    99 of 100 within"; .p99[0] | round1; .p99[1] | round1; .p99[0] / .p99[1] | round2),
  row("samples verified"; $ur.verified; $right.verified; ""),
  row("samples lost"; 0; $right.lost + $right.unknown; ""),
  row("times the coprocessor came back"; $ut.restarts; $tx.controls[0].restarts; "")
