//! Finds the kernel's error reports in its console output.

/// What Linux says of a timer that is `rcupdate.rcu_cpu_stall_timeout` late.
pub(crate) const STALLED: &str = "kthread timer wakeup didn't happen";

/// Most lines of a report; a longer one is cut.
const LONGEST: usize = 200;

/// The start of a line that begins a report.
const STARTS: [&str; 13] = [
    "WARNING: ",
    "BUG: ",
    "BUG ",
    "INFO: possible ",
    "INFO: task ",
    "INFO: trying to register non-static key",
    "kernel BUG at ",
    "Oops: ",
    "Internal error: ",
    "Unable to handle kernel ",
    "Kernel panic",
    "general protection fault",
    "UBSAN: ",
];

/// Part of a line that begins a report.
const INSIDE: [&str; 5] = [
    "KASAN: ",
    "suspicious RCU usage",
    "watchdog: BUG: ",
    "detected stalls on CPUs",
    "self-detected stall on CPU",
];

/// The reports in a console log, each as it was printed.
#[must_use]
pub fn reports(console: &str) -> Vec<String> {
    let mut reports: Vec<String> = Vec::new();
    let mut open: Option<Open<'_>> = None;
    // Fault injection prints a trace of the caller that got the fault. That is intended.
    let mut injected = false;
    // First lines of reports that were interrupted by another processor's report.
    let mut heads: Vec<(usize, &str)> = Vec::new();
    for (number, line) in console.lines().enumerate() {
        let text = message(line);
        injected |= text.starts_with("FAULT_INJECTION: ");
        if starts(text) && open.as_ref().is_some_and(Open::may_have_ended) {
            open = None;
        }
        if let (Some(report), Some(last)) = (&mut open, reports.last_mut()) {
            last.push_str(line.trim_end());
            last.push('\n');
            if starts(text) {
                heads.push((number, line));
            }
            report.traced |= is_trace(text);
            report.bare |= is_bare(text);
            if report.ends(text) {
                // Without a trace it was the end of another one.
                if !report.traced {
                    heads.push((number, report.head));
                }
                open = None;
            }
        } else if starts(text) || (is_trace(text) && !injected) {
            let traced = is_trace(text);
            heads.retain(|(begun, _)| number - begun < LONGEST);
            let mut report = String::new();
            if traced && !heads.is_empty() {
                report = format!("{}\n", heads.remove(0).1.trim_end());
            }
            reports.push(report + line.trim_end() + "\n");
            open = Some(Open {
                lines: 1,
                framed: framed(text),
                traced,
                bare: is_bare(text),
                foreign: 0,
                head: line,
            });
        } else if text.contains("</TASK>") || is_bare(text) {
            injected = false;
        }
    }
    reports
}

/// Whether a processor that has nothing else to do waits for a timer that does not come.
#[must_use]
pub fn has_lost_a_timer(console: &str) -> bool {
    let stalls = console.split("detected stalls on CPUs").skip(1);
    let mut said = stalls.filter_map(|stall| stall.split_once(STALLED));
    said.any(|(trace, _)| trace.contains("arch_cpu_idle+") && !trace.contains("<IRQ>"))
}

/// A report that is being read.
struct Open<'a> {
    /// Its first line.
    head: &'a str,
    lines: usize,
    /// Whether a line of `=` closes it.
    framed: bool,
    /// Whether its trace was printed.
    traced: bool,
    /// Whether no line closes its trace.
    bare: bool,
    /// Number of lines after such a trace. One alone may be of another processor, within the trace.
    foreign: usize,
}

impl Open<'_> {
    /// Whether this may have been its last line, though none says so.
    fn may_have_ended(&self) -> bool {
        self.bare && self.traced && !self.framed
    }

    /// Whether the report ends with this line.
    fn ends(&mut self, text: &str) -> bool {
        self.lines += 1;
        let in_trace = is_bare(text) || text.contains("+0x");
        self.foreign = if in_trace { 0 } else { self.foreign + 1 };
        let end = match self {
            Self { framed: true, .. } => text.starts_with("====="),
            Self { bare: true, foreign, .. } => *foreign > 1,
            _ => text.contains("</TASK>"),
        };
        end || text.starts_with("---[ end ") || self.lines == LONGEST
    }
}

/// Whether a trace of calls follows.
fn is_trace(text: &str) -> bool {
    text.starts_with("Call Trace:") || is_bare(text)
}

/// Whether a trace of an arm64 kernel follows: its end is not marked.
fn is_bare(text: &str) -> bool {
    text.starts_with("Call trace:")
}

/// KASAN prints more after the trace, KCSAN has two traces; both end with a line of `=`.
fn framed(text: &str) -> bool {
    text.contains("KASAN: ") || text.contains("KCSAN: ")
}

fn starts(text: &str) -> bool {
    // Programs of the guest may write to the console too; those lines are not the kernel's.
    let program = text.starts_with("virtme") || text.starts_with("systemd-udevd");
    // Linux itself has many known data races; the lab looks for those of modules, whose
    // functions are followed by `[module]`.
    let of_linux = text.contains("KCSAN: data-race") && !text.contains('[');
    !program
        && !of_linux
        && (STARTS.iter().any(|start| text.starts_with(start))
            || INSIDE.iter().any(|part| text.contains(part)))
}

/// The line without `[   12.345678]` and, where the kernel prints it, `[    T123]`.
fn message(line: &str) -> &str {
    let mut rest = line.trim_start();
    while let Some((stamp, after)) = rest.strip_prefix('[').and_then(|line| line.split_once(']')) {
        let stamp = stamp.trim_start_matches([' ', 'T', 'C']);
        if stamp.is_empty() || !stamp.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
            break;
        }
        rest = after.trim_start();
    }
    rest
}

#[cfg(test)]
mod tests;
