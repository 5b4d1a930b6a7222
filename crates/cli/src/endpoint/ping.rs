//! `busbar endpoint ping`, whose output is like that of ping(8).

use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use busbar::endpoint::MAX_MESSAGE;
use busbar::{Error, Reason, Result, later};
use busbar_coprocessor::Stop;
use rustix::event::{PollFd, PollFlags};
use serde::Serialize;

use super::packet::{self, Fault};
use super::statistics::{Reply, Statistics, Summary, milliseconds};
use super::{Connection, MAX_SIZE, RETRY, Route, wait};
use crate::print::{complain, print_json, print_line};
use crate::progress::interruption;
use crate::quantity::seconds;

/// Bytes that the bus puts in front of each message.
const BUS_HEADER: usize = 16;

#[derive(clap::Args)]
#[command(after_help = "\
Example, five messages, and a thousand of the greatest size as fast as they come back:
  busbar endpoint ping echo -c 5 -i 0.2
  busbar endpoint ping 0x400 -c 1000 -i 0 -s 496 --json

Exit codes: 0 if a reply came, 1 if none did, 2 for usage.")]
pub struct Args {
    #[command(flatten)]
    route: Route,

    /// Messages to send [default: until SIGINT]
    #[arg(short, long, value_parser = clap::value_parser!(u32).range(1..))]
    count: Option<u32>,

    /// Seconds between two messages; 0 sends the next one as soon as the last one was answered
    #[arg(short, long, default_value = "1", value_parser = seconds)]
    interval: Duration,

    /// Bytes of each message, 8 to 496
    #[arg(short, long, default_value_t = 56, value_parser = clap::value_parser!(u16).range(8..=MAX_SIZE))]
    size: u16,

    /// Seconds to wait for the last replies
    #[arg(short = 'W', long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    timeout: Duration,

    /// Print the statistics as JSON and nothing else
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    target: String,
    address: u32,
    controller: String,
    implementation: String,
    size: u16,
    transmitted: u32,
    received: u32,
    duplicates: u32,
    corrupted: u32,
    loss_percent: f64,
    elapsed_ms: f64,
    rtt_ms: Option<&'a Summary>,
}

/// 0 if there was a reply, 1 otherwise.
pub fn run(args: &Args) -> Result<ExitCode> {
    let stop = interruption(true)?;
    let connection = args.route.connect()?;
    let mut ping = Ping {
        args,
        connection: &connection,
        run: std::process::id(),
        statistics: Statistics::default(),
        begun: Instant::now(),
        next: Instant::now(),
    };
    ping.say(&ping.head())?;
    let ended = ping.converse(&stop);
    ping.conclude()?;
    ended?;
    Ok(if ping.statistics.received > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

struct Ping<'a> {
    args: &'a Args,
    connection: &'a Connection,
    run: u32,
    statistics: Statistics,
    begun: Instant,
    /// When to send the next message.
    next: Instant,
}

impl Ping<'_> {
    fn converse(&mut self, stop: &Stop) -> Result<()> {
        let endpoint = &self.connection.endpoint;
        loop {
            self.send_if_due()?;
            self.take_replies()?;
            let now = Instant::now();
            let Some(until) = self.wait_until(now) else { return Ok(()) };
            let mut fds = [
                PollFd::new(endpoint, PollFlags::IN),
                PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN),
            ];
            wait(&mut fds, Some(until.saturating_duration_since(now)))?;
            if !fds[1].revents().is_empty() {
                return Ok(());
            }
        }
    }

    /// When to act next if no reply comes; none if all is done.
    fn wait_until(&self, now: Instant) -> Option<Instant> {
        if !self.is_all_sent() {
            return Some(if self.is_due() { now } else { self.due() });
        }
        let last = later(self.statistics.last_sent().unwrap_or(now), self.args.timeout);
        (last > now && !self.statistics.are_all_answered()).then_some(last)
    }

    fn is_all_sent(&self) -> bool {
        self.args.count.is_some_and(|count| self.statistics.transmitted >= count)
    }

    /// Without an interval, a reply is waited for but no longer than for the last one.
    fn due(&self) -> Instant {
        let waits = self.args.interval.is_zero() && !self.statistics.is_last_answered();
        match self.statistics.last_sent() {
            Some(last) if waits => later(last, self.args.timeout),
            _ => self.next,
        }
    }

    fn is_due(&self) -> bool {
        Instant::now() >= self.due()
    }

    fn send_if_due(&mut self) -> Result<()> {
        if self.is_all_sent() || !self.is_due() {
            return Ok(());
        }
        let mut buffer = [0; MAX_MESSAGE];
        let message = &mut buffer[..usize::from(self.args.size)];
        packet::fill(message, self.run, self.statistics.next());
        let at = Instant::now();
        if self.connection.endpoint.try_send(message)? {
            self.statistics.sent(at);
            // Counted from when it was due, not from when it was sent, so that the rate is kept.
            self.next = later(self.next, self.args.interval).max(at);
        } else {
            self.next = later(at, RETRY);
        }
        Ok(())
    }

    fn take_replies(&mut self) -> Result<()> {
        let mut buffer = [0; MAX_MESSAGE];
        loop {
            match self.connection.endpoint.try_recv(&mut buffer) {
                Ok(Some(length)) => self.take(&buffer[..length], Instant::now())?,
                Ok(None) => return Ok(()),
                Err(error) if is_message_lost(&error) => complain(&format!("busbar: {error}")),
                Err(error) => return Err(error),
            }
        }
    }

    fn take(&mut self, reply: &[u8], now: Instant) -> Result<()> {
        let size = usize::from(self.args.size);
        let (sequence, fault) = match packet::check(reply, self.run, size) {
            Ok(good) => good,
            Err(fault) => return self.reject(reply.len(), fault),
        };
        let answer = self.statistics.reply(sequence, fault.is_none(), now);
        let (time, remark) = match answer {
            Reply::First(time) => (time, ""),
            Reply::Duplicate(time) => (time, " (DUP!)"),
            Reply::Unknown => return self.reject(reply.len(), Fault::Foreign),
        };
        let from = self.from(reply.len());
        self.say(&format!("{from}: seq={sequence} time={} ms{remark}", milliseconds(time)))?;
        match fault {
            Some(fault) => self.reject(reply.len(), fault),
            None => Ok(()),
        }
    }

    fn reject(&mut self, length: usize, fault: Fault) -> Result<()> {
        self.statistics.corrupted += 1;
        self.say(&format!("{}: {fault}", self.from(length)))
    }

    fn from(&self, length: usize) -> String {
        format!("{length} bytes from {}", self.peer())
    }

    /// `echo (0x400)`, or just the address.
    fn peer(&self) -> String {
        let address = format!("{:#x}", self.connection.address);
        match self.args.route.target.to_string() {
            target if target == address => address,
            name => format!("{name} ({address})"),
        }
    }

    fn head(&self) -> String {
        let size = usize::from(self.args.size);
        format!(
            "PING {} through {} by {}: {size}({}) bytes of data.",
            self.peer(),
            self.connection.controller.display(),
            self.connection.endpoint.implementation(),
            size + BUS_HEADER,
        )
    }

    fn say(&self, text: &str) -> Result<()> {
        if self.args.json { Ok(()) } else { print_line(text) }
    }

    fn conclude(&self) -> Result<()> {
        let summary = self.statistics.summary();
        if self.args.json {
            return print_json(&self.report(summary.as_ref()));
        }
        print_line(&format!("\n--- {} ping statistics ---", self.args.route.target))?;
        print_line(&self.counts())?;
        summary.map_or(Ok(()), |summary| print_line(&summary.to_string()))
    }

    fn counts(&self) -> String {
        let Statistics { transmitted, received, duplicates, corrupted, .. } = self.statistics;
        let some = |count, what| match count {
            0 => String::new(),
            count => format!(", +{count} {what}"),
        };
        format!(
            "{transmitted} messages transmitted, {received} received{}{}, {}% loss, time {}ms",
            some(duplicates, "duplicates"),
            some(corrupted, "corrupted"),
            percent(self.statistics.loss()),
            self.begun.elapsed().as_millis(),
        )
    }

    fn report<'a>(&self, rtt_ms: Option<&'a Summary>) -> Report<'a> {
        Report {
            target: self.args.route.target.to_string(),
            address: self.connection.address,
            controller: self.connection.controller.display().to_string(),
            implementation: self.connection.endpoint.implementation().to_string(),
            size: self.args.size,
            transmitted: self.statistics.transmitted,
            received: self.statistics.received,
            duplicates: self.statistics.duplicates,
            corrupted: self.statistics.corrupted,
            loss_percent: self.statistics.loss(),
            elapsed_ms: self.begun.elapsed().as_secs_f64() * 1e3,
            rtt_ms,
        }
    }
}

/// Replies came faster than they were read: some are missing, but the endpoint works.
fn is_message_lost(error: &Error) -> bool {
    error.reason() == Reason::Lost
}

/// `0`, `33.3333`: like ping(8), at most six digits and no zeros at the end.
fn percent(value: f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_read_like_those_of_ping() {
        let texts = [0.0, 100.0, 50.0, 100.0 / 3.0, 0.5].map(percent);
        assert_eq!(texts, ["0", "100", "50", "33.3333", "0.5"]);
    }

    #[test]
    fn sizes_counts_and_times_out_of_range_are_usage_errors() {
        use clap::Parser;
        #[derive(clap::Parser)]
        struct Cli {
            #[command(flatten)]
            args: Args,
        }
        let parse = |options: &[&str]| Cli::try_parse_from([&["ping", "echo"], options].concat());
        assert_eq!(parse(&[]).map_or(0, |cli| cli.args.size), 56);
        for good in [["-s", "8"], ["-s", "496"], ["-c", "1"], ["-i", "0"], ["-W", "0.5"]] {
            assert!(parse(&good).is_ok(), "{good:?}");
        }
        for bad in [["-s", "7"], ["-s", "497"], ["-c", "0"], ["-i", "-1"], ["-W", "x"]] {
            let error = parse(&bad).err().expect("is not allowed");
            assert_eq!(error.exit_code(), 2, "{bad:?}");
        }
        let text = parse(&["-s", "497"]).err().expect("is not allowed").to_string();
        assert!(text.contains("--size") && text.contains("8..=496"), "{text}");
    }
}
