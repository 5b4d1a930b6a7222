# Compares both ways, from the summaries of the four programs in each turn: prints a table or, with `form` = "json", what
# `busbar report --demo` draws.
def summaries: map(select(.event == "summary"));
def pad(n): tostring | if length < n then " " * (n - length) + . else . end;
def round1: . * 10 | round / 10;
def round2: . * 100 | round / 100;
def mean: add / length;
# Both ends of a turn, and the counters of the machine.
def usual: [range($us | length) as $i | $us[$i] as $s | $ur[$i] as $r | {
    bytes: $r.bytes, seconds: $s.seconds, cpu: ($s.cpu_seconds + $r.cpu_seconds), copied: ($s.copied + $r.copied),
    p50: $r.latency_p50, p99: $r.latency_p99, verified: $r.verified, lost: 0, restarts: $s.restarts, machine: $um[$i]}];
def ours: ($bs | summaries) as $bs | ($br | summaries) as $br
  | [range($bs | length) as $i | $bs[$i] as $s | $br[$i] as $r
    | ($r.sinks | map(select(.name == "right")) | first) as $right | {
    bytes: $right.bytes, seconds: $s.seconds, cpu: ($s.cpu_seconds + $r.cpu_seconds), copied: ($s.copied + $r.copied),
    p50: $right.latency_p50, p99: $right.latency_p99, verified: $right.verified,
    lost: ($right.lost + $right.unknown), restarts: $s.controls[0].restarts, machine: $bm[$i]}];

# The sum of a measure over all turns, which have the same length.
def sum(f): map(f) | add;
def per_gb(f): sum(f) / sum(.bytes) * 1e9;
# The host's count of the guest's processor time. The guest's own clocks go on while the host does something else.
def has_host: all(.[]; .machine.before and .machine.after);
def on_host: .machine.after.guest - .machine.before.guest;
def copies: sum(.copied) / sum(.bytes);
def rate: sum(.bytes) / 1e6 / sum(.seconds);
# In percent of the host's processor time, and of time: processor time of others than the guest, and
# how long a task waited for one.
def during(f): map(.machine | select(.before and .after) | f);
def others: during((.after.time - .before.time) as $time
  | (.after.busy - .before.busy - .after.guest + .before.guest + .after.stolen - .before.stolen)
    / ($time * .after.processors) * 100 | if . < 0 then 0 else . end);
def waited: during(select(.after.waited) | (.after.waited - .before.waited) / (.after.time - .before.time) * 100);

def line(name; a; b; ratio; turns):
  (name + " " * (46 - (name | length))) + (a | pad(12)) + (b | pad(12)) + (ratio | pad(10)) + (turns | pad(14));
def text: line(.name; .usual; .busbar; .ratio // ""; .turns // [] | map(tostring) | join(", "));
# A row of the measure `f`, and how many times better Busbar is: in total, and in each pair of turns. `short`: its name in
# the picture, if it is in there.
def row(name; short; f; round; better):
  . as {usual: $u, ours: $o} | [range($u | length) as $i | [[$u[$i]], [$o[$i]]] | map(f) | better | round2] as $turns
  | {name: name, short: short, usual: ($u | f | round), busbar: ($o | f | round),
     ratio: ([$u, $o] | map(f) | better | round2), turns: $turns};
def less: .[0] / .[1];
def more: .[1] / .[0];
def plain(name; short; f): {name: name, short: short, usual: (.usual | f), busbar: (.ours | f)};
def percent(name; f): if (.usual | f | length) > 0 then plain(name; null; f | mean | round) else empty end;

[usual, ours] | transpose | length as $all
# A very busy machine may deliver nothing in a turn.
| map(select(.[0].bytes > 0 and .[1].bytes > 0))
| if length == 0 then
    "In no pair of turns did both ways deliver samples. Use longer turns: demo/run SECONDS.\n" | halt_error(1)
  else . end
| ($all - length) as $empty
| {usual: map(.[0]), ours: map(.[1])}
| ([.usual, .ours] | all(.[]; has_host)) as $has_host
| ([.usual, .ours] | map(if $has_host then per_gb(on_host) else per_gb(.cpu) end | round1)) as $cpu | ([.usual, .ours] | map(copies | round2)) as $copies
| "For 1 GB, the usual way needs \($cpu[0]) s of processor time, and Busbar \($cpu[1]) s. The usual way copies \($copies[0]) GB for it, and Busbar \($copies[1]) GB." as $says
| [
    (if $has_host then row("processor time, as the host counts it, s/GB"; null; per_gb(on_host); round1; less) else empty end),
    row("processor time of both programs, s/GB"; "processor time, s/GB"; per_gb(.cpu); round1; less),
    row("processor time of the whole machine, s/GB"; null; per_gb(.machine.busy / 100); round1; less),
    plain("bytes copied for each one delivered"; "copies of each byte"; copies | round2),
    row("throughput, MB/s"; "throughput, MB/s"; rate; round1; more),
    row("latency, sample to verified, ms: median"; "latency, ms (median)"; map(.p50 / 1e3) | mean; round1; less),
    row("    99 of 100 blocks"; null; map(.p99 / 1e3) | max; round1; less),
    plain("samples verified"; null; sum(.verified)),
    plain("samples lost"; null; sum(.lost)),
    plain("times the coprocessor came back"; null; sum(.restarts)),
    percent("the host had other work, % of its processors"; others),
    percent("a task waited for a processor of the host, %"; waited)
  ] as $rows
| if $form == "json" then {machine: $machine, says: $says, killed: ($killed | tonumber), rows: $rows} | tojson else
  $says + "\n",
  line(""; "usual"; "Busbar"; "ratio"; "turn by turn"),
  ($rows[] | text),
  (if $empty > 0 then "\nLeft out: \($empty) of \($all) pairs of turns, in which one way delivered nothing." else empty end),
  (([.usual, .ours] | map(others[])) as $others | if ($others | length) > 0 and ($others | max) > 10 then
    "\nThe host had other work (up to \($others | max | round) % of its processors in a turn). All times measured by the guest are longer because of it." else empty end) end
