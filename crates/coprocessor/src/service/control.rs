//! Leads a pipeline: tunes, starts and stops its source, and tells it of events.
//!
//! Speaks [`message`](busbar::pipeline::message). When a pipeline says `start SOURCE`, commands
//! follow, each when the one before was answered:
//!
//! 1. `set SOURCE in_voltageN_X_hardwaregain 0.70` for the four channels of a converter with two
//!    complex inputs, if a [gain](Control::gain) was given;
//! 2. `set SOURCE sampling_frequency N`, if a [rate](Control::rate) was;
//! 3. `start SOURCE`.
//!
//! An `error` ends this sequence, and is counted. When the start was carried out, events begin:
//! `event trigger K` and `event overload K` at their periods, where `K` counts from 1. Events
//! that a full ring has delayed are left out. When the pipeline says `stop SOURCE`, they end, and
//! `stop SOURCE` is commanded once no other command is in progress.
//!
//! A source belongs to the address that sent `start` last: a pipeline that comes back after a crash takes it
//! over from the one before. At most [`MAX_SOURCES`] are led at a time; for one more, the one that was
//! started first is forgotten.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use busbar::pipeline::message::{Action, Name, Report, Request};
use busbar::{Error, Result, later};

use super::{Port, Service};

/// Sources that are led at a time.
pub const MAX_SOURCES: usize = 32;

/// The shortest period of an event.
const SHORTEST: Duration = Duration::from_millis(1);

/// The channels of a converter that have a gain.
const CHANNELS: [&str; 4] = ["voltage0_i", "voltage0_q", "voltage1_i", "voltage1_q"];

/// Leads a pipeline, see the [module](self).
#[derive(Clone, Debug)]
pub struct Control {
    name: String,
    settings: Settings,
    leads: VecDeque<Lead>,
    /// The number of the last command.
    last: u32,
}

/// Commands and events to send.
#[derive(Clone, Debug, Default)]
struct Settings {
    gain: Option<u8>,
    rate: Option<u64>,
    trigger: Option<Duration>,
    overload: Option<Duration>,
}

/// A source of a pipeline that is led.
#[derive(Clone, Debug)]
struct Lead {
    pipeline: u32,
    source: Name,
    /// Commands to send.
    commands: VecDeque<Action>,
    /// The command that was sent but not answered.
    waits: Option<(u32, Action)>,
    events: Vec<Event>,
    is_ending: bool,
}

/// A periodic event.
#[derive(Clone, Debug)]
struct Event {
    name: &'static str,
    period: Duration,
    due: Instant,
    count: u64,
}

impl Control {
    /// A service that is announced as `name`, and only starts and stops.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), settings: Settings::default(), leads: VecDeque::new(), last: 0 }
    }

    /// Sets the gain of all channels first, in percent, at most 100.
    #[must_use]
    pub fn gain(mut self, percent: u8) -> Self {
        self.settings.gain = Some(percent.min(100));
        self
    }

    /// Sets the rate first, in samples per second.
    #[must_use]
    pub fn rate(mut self, rate: u64) -> Self {
        self.settings.rate = Some(rate);
        self
    }

    /// Sends a trigger event each `period`, at least a millisecond.
    #[must_use]
    pub fn trigger(mut self, period: Duration) -> Self {
        self.settings.trigger = Some(period.max(SHORTEST));
        self
    }

    /// Sends an overload event each `period`, at least a millisecond.
    #[must_use]
    pub fn overload(mut self, period: Duration) -> Self {
        self.settings.overload = Some(period.max(SHORTEST));
        self
    }

    fn begin(&mut self, port: &mut Port<'_>, pipeline: u32, source: Name) -> Result<()> {
        self.leads.retain(|lead| lead.source != source);
        if self.leads.len() == MAX_SOURCES {
            self.leads.pop_front();
        }
        let commands = self.settings.commands(&source)?;
        let mut lead =
            Lead { pipeline, source, commands, waits: None, events: Vec::new(), is_ending: false };
        lead.command(port, &mut self.last)?;
        self.leads.push_back(lead);
        Ok(())
    }

    fn end(&mut self, port: &mut Port<'_>, pipeline: u32, source: &Name) -> Result<()> {
        let mine = |lead: &&mut Lead| lead.pipeline == pipeline && lead.source == *source;
        let lead = self.leads.iter_mut().find(mine).ok_or_else(|| {
            let allowed = format!("one that {pipeline:#x} has started");
            Error::invalid("the source to stop", source, allowed)
        })?;
        if lead.is_ending {
            return Ok(());
        }
        lead.is_ending = true;
        lead.events.clear();
        lead.commands = [Action::Stop(source.clone())].into();
        lead.command(port, &mut self.last)
    }

    /// Handles an answer: `failed` is why the command was not carried out.
    fn answer(
        &mut self,
        port: &mut Port<'_>,
        pipeline: u32,
        number: u32,
        failed: Option<&str>,
    ) -> Result<()> {
        let asked = |lead: &Lead| {
            lead.pipeline == pipeline && lead.waits.as_ref().is_some_and(|(of, _)| *of == number)
        };
        let at = self.leads.iter().position(asked).ok_or_else(|| {
            let allowed = format!("that of a command to {pipeline:#x} without an answer");
            Error::invalid("the number of an answer", number, allowed)
        })?;
        let lead = &mut self.leads[at];
        let action = lead.waits.take().map(|(_, action)| action);
        if matches!(action, Some(Action::Stop(_))) {
            self.leads.remove(at);
        } else {
            if failed.is_some() && !lead.is_ending {
                lead.commands.clear();
            } else if matches!(action, Some(Action::Start(_))) && !lead.is_ending {
                lead.events = self.settings.events(Instant::now());
            }
            lead.command(port, &mut self.last)?;
        }
        match (failed, action) {
            (Some(why), Some(action)) => Err(not_carried_out(number, &action, why)),
            _ => Ok(()),
        }
    }
}

fn not_carried_out(number: u32, action: &Action, why: &str) -> Error {
    let on = format!("command {number}, `{action}`");
    Error::new("have a pipeline carry out", on, io::Error::other(why.to_owned()))
}

impl Settings {
    /// The commands that start a source.
    fn commands(&self, source: &Name) -> Result<VecDeque<Action>> {
        let set = |attribute: String, value: String| -> Result<Action> {
            let (attribute, value) = (attribute.parse()?, value.parse()?);
            Ok(Action::Set { source: source.clone(), attribute, value })
        };
        let gains = self.gain.map(|percent| {
            let gain = format!("{}.{:02}", percent / 100, percent % 100);
            CHANNELS.map(|channel| (format!("in_{channel}_hardwaregain"), gain.clone()))
        });
        let rate = self.rate.map(|rate| ("sampling_frequency".to_owned(), rate.to_string()));
        let mut commands = (gains.into_iter().flatten().chain(rate))
            .map(|(attribute, value)| set(attribute, value))
            .collect::<Result<VecDeque<_>>>()?;
        commands.push_back(Action::Start(source.clone()));
        Ok(commands)
    }

    /// The events from `now` on.
    fn events(&self, now: Instant) -> Vec<Event> {
        let periods = [("trigger", self.trigger), ("overload", self.overload)];
        let event = |(name, period): (_, Option<Duration>)| {
            let period = period?;
            Some(Event { name, period, due: now.checked_add(period)?, count: 0 })
        };
        periods.into_iter().filter_map(event).collect()
    }
}

impl Lead {
    /// Sends the next command, if none is in progress.
    fn command(&mut self, port: &mut Port<'_>, last: &mut u32) -> Result<()> {
        if self.waits.is_some() {
            return Ok(());
        }
        let Some(action) = self.commands.pop_front() else { return Ok(()) };
        *last = last.wrapping_add(1);
        self.waits = Some((*last, action.clone()));
        let report = Report::Command { number: *last, action };
        port.send(self.pipeline, &report.encode()?)
    }
}

impl Event {
    fn tell(&mut self, port: &mut Port<'_>, to: u32, now: Instant) -> Result<()> {
        self.count += 1;
        let next = later(self.due, self.period);
        self.due = if next > now { next } else { later(now, self.period) };
        let report = Report::Event { name: self.name.parse()?, value: Some(self.count) };
        port.send(to, &report.encode()?)
    }
}

impl Service for Control {
    fn name(&self) -> &str {
        &self.name
    }

    fn on_start(&mut self, _port: &mut Port<'_>) -> Result<()> {
        self.leads.clear();
        Ok(())
    }

    fn on_message(&mut self, port: &mut Port<'_>, from: u32, data: &[u8]) -> Result<()> {
        match Request::decode(data)? {
            Request::Start(source) => self.begin(port, from, source),
            Request::Stop(source) => self.end(port, from, &source),
            Request::Ok { number } => self.answer(port, from, number, None),
            Request::Error { number, text } => self.answer(port, from, number, Some(text.as_str())),
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.leads.iter().flat_map(|lead| &lead.events).map(|event| event.due).min()
    }

    fn on_tick(&mut self, port: &mut Port<'_>, now: Instant) -> Result<()> {
        for lead in &mut self.leads {
            for event in lead.events.iter_mut().filter(|event| event.due <= now) {
                if port.room() == 0 {
                    return Ok(());
                }
                event.tell(port, lead.pipeline, now)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::{Bench, Sent};
    use super::*;

    const LINUX: u32 = 0x401;
    const OTHER: u32 = 0x402;

    /// Sends a line, and expects lines.
    fn says(bench: &mut Bench, from: u32, line: &str, expected: &[&str]) {
        let sent = bench.message(from, line.as_bytes()).unwrap_or_else(|e| panic!("{line}: {e}"));
        assert_eq!(lines(&sent, from), expected, "{line}");
    }

    fn lines(sent: &Sent, to: u32) -> Vec<&str> {
        assert!(sent.iter().all(|(address, _)| *address == to), "{sent:?}");
        sent.iter().map(|(_, data)| std::str::from_utf8(data).unwrap()).collect()
    }

    fn fails(bench: &mut Bench, from: u32, line: &[u8]) -> String {
        bench.message(from, line).unwrap_err().to_string()
    }

    /// The events at the next deadline, handled `late` after it.
    fn tick(bench: &mut Bench, late: Duration) -> Vec<String> {
        let sent = bench.tick(bench.deadline().unwrap() + late).unwrap();
        lines(&sent, LINUX).into_iter().map(str::to_owned).collect()
    }

    fn ms(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    #[test]
    fn each_command_waits_for_the_answer_to_the_one_before() {
        let mut bench = Bench::new(Control::new("control").gain(70).rate(48_000));
        says(&mut bench, LINUX, "start adc", &["1 set adc in_voltage0_i_hardwaregain 0.70"]);
        says(&mut bench, LINUX, "ok 1", &["2 set adc in_voltage0_q_hardwaregain 0.70"]);
        says(&mut bench, LINUX, "ok 2", &["3 set adc in_voltage1_i_hardwaregain 0.70"]);
        says(&mut bench, LINUX, "ok 3", &["4 set adc in_voltage1_q_hardwaregain 0.70"]);
        says(&mut bench, LINUX, "ok 4", &["5 set adc sampling_frequency 48000"]);
        says(&mut bench, LINUX, "ok 5", &["6 start adc"]);
        says(&mut bench, LINUX, "ok 6", &[]);
        assert_eq!(bench.deadline(), None);
        says(&mut bench, LINUX, "stop adc", &["7 stop adc"]);
        says(&mut bench, LINUX, "ok 7", &[]);
        assert!(fails(&mut bench, LINUX, b"stop adc").contains("one that 0x401 has started"));
    }

    #[test]
    fn gains_are_written_with_two_digits() {
        for (percent, gain) in [(0, "0.00"), (5, "0.05"), (99, "0.99"), (100, "1.00")] {
            let mut bench = Bench::new(Control::new("control").gain(percent));
            let expected = format!("1 set adc in_voltage0_i_hardwaregain {gain}");
            says(&mut bench, LINUX, "start adc", &[&expected]);
        }
    }

    #[test]
    fn events_come_between_start_and_stop_and_are_numbered() {
        let control = Control::new("control").trigger(ms(20)).overload(ms(50));
        let mut bench = Bench::new(control);
        says(&mut bench, LINUX, "start adc", &["1 start adc"]);
        assert_eq!(bench.deadline(), None);
        let before = Instant::now();
        says(&mut bench, LINUX, "ok 1", &[]);
        assert!(bench.tick(before + ms(19)).unwrap().is_empty());
        for expected in ["trigger 1", "trigger 2", "overload 1", "trigger 3", "trigger 4"] {
            assert_eq!(tick(&mut bench, Duration::ZERO), [format!("event {expected}")]);
        }
        // Both are due.
        assert_eq!(tick(&mut bench, Duration::ZERO), ["event trigger 5", "event overload 2"]);
        // Three more triggers would have been due meanwhile; the next is 20 ms from now.
        assert_eq!(tick(&mut bench, ms(65)), ["event trigger 6", "event overload 3"]);
        assert_eq!(tick(&mut bench, Duration::ZERO), ["event overload 4"]);
        assert_eq!(tick(&mut bench, Duration::ZERO), ["event trigger 7"]);
        says(&mut bench, LINUX, "stop adc", &["2 stop adc"]);
        assert_eq!(bench.deadline(), None);
        fails(&mut bench, LINUX, b"error 2x");
    }

    #[test]
    fn an_error_ends_what_was_begun_and_is_told() {
        let mut bench = Bench::new(Control::new("control").rate(1).trigger(ms(20)));
        says(&mut bench, LINUX, "start adc", &["1 set adc sampling_frequency 1"]);
        let error = fails(&mut bench, LINUX, b"error 1 no such attribute");
        assert!(error.contains("`set adc sampling_frequency 1`: no such attribute"), "{error}");
        assert_eq!(bench.deadline(), None);
        // The source can be stopped, or started again.
        says(&mut bench, LINUX, "start adc", &["2 set adc sampling_frequency 1"]);
        says(&mut bench, LINUX, "ok 2", &["3 start adc"]);
        fails(&mut bench, LINUX, b"error 3 busy");
        assert_eq!(bench.deadline(), None);
        says(&mut bench, LINUX, "stop adc", &["4 stop adc"]);
        fails(&mut bench, LINUX, b"error 4 not running");
        assert!(fails(&mut bench, LINUX, b"stop adc").contains("the source to stop"));
    }

    #[test]
    fn a_stop_in_the_middle_waits_for_the_command_that_is_under_way() {
        let mut bench = Bench::new(Control::new("control").gain(50).trigger(ms(20)));
        says(&mut bench, LINUX, "start adc", &["1 set adc in_voltage0_i_hardwaregain 0.50"]);
        says(&mut bench, LINUX, "stop adc", &[]);
        says(&mut bench, LINUX, "stop adc", &[]);
        says(&mut bench, LINUX, "ok 1", &["2 stop adc"]);
        says(&mut bench, LINUX, "stop adc", &[]);
        says(&mut bench, LINUX, "ok 2", &[]);

        let mut bench = Bench::new(Control::new("control").trigger(ms(20)));
        says(&mut bench, LINUX, "start adc", &["1 start adc"]);
        says(&mut bench, LINUX, "stop adc", &[]);
        let sent = bench.message(LINUX, b"error 1 busy");
        assert!(sent.unwrap_err().to_string().contains("busy"));
        assert_eq!(bench.deadline(), None);
        says(&mut bench, LINUX, "ok 2", &[]);
    }

    #[test]
    fn only_the_pipeline_that_is_asked_can_answer() {
        let mut bench = Bench::new(Control::new("control").trigger(ms(20)));
        says(&mut bench, LINUX, "start adc", &["1 start adc"]);
        for (from, line) in
            [(OTHER, "ok 1"), (LINUX, "ok 2"), (LINUX, "error 0 no"), (OTHER, "stop adc")]
        {
            let error = fails(&mut bench, from, line.as_bytes());
            assert!(error.contains("allowed: "), "{error}");
        }
        says(&mut bench, LINUX, "ok 1", &[]);
        assert!(fails(&mut bench, LINUX, b"ok 1").contains("without an answer"));
    }

    #[test]
    fn a_source_goes_to_whoever_starts_it_last() {
        let mut bench = Bench::new(Control::new("control").trigger(ms(20)));
        says(&mut bench, OTHER, "start adc", &["1 start adc"]);
        says(&mut bench, OTHER, "ok 1", &[]);
        says(&mut bench, OTHER, "start dac", &["2 start dac"]);
        says(&mut bench, LINUX, "start adc", &["3 start adc"]);
        assert_eq!(bench.deadline(), None);
        says(&mut bench, LINUX, "ok 3", &[]);
        assert_eq!(tick(&mut bench, Duration::ZERO), ["event trigger 1"]);
        assert!(fails(&mut bench, OTHER, b"stop adc").contains("0x402"));
        says(&mut bench, OTHER, "ok 2", &[]);
    }

    #[test]
    fn sources_are_limited_and_all_events_of_a_tick_find_room() {
        let mut bench = Bench::new(Control::new("control").trigger(ms(20)).overload(ms(20)));
        for number in 0..=MAX_SOURCES {
            let command = format!("{} start s{number}", number + 1);
            says(&mut bench, LINUX, &format!("start s{number}"), &[&command]);
            says(&mut bench, LINUX, &format!("ok {}", number + 1), &[]);
        }
        assert!(fails(&mut bench, LINUX, b"stop s0").contains("the source to stop"));
        let late = tick(&mut bench, Duration::from_secs(1));
        assert_eq!(late.len(), 2 * MAX_SOURCES);
    }

    #[test]
    fn a_new_start_forgets_what_was_begun() {
        let mut bench = Bench::new(Control::new("control").trigger(ms(20)));
        says(&mut bench, LINUX, "start adc", &["1 start adc"]);
        says(&mut bench, LINUX, "ok 1", &[]);
        bench.start().unwrap();
        assert_eq!(bench.deadline(), None);
        assert!(fails(&mut bench, LINUX, b"stop adc").contains("the source to stop"));
    }

    #[test]
    fn what_is_no_request_is_an_error() {
        let mut bench = Bench::new(Control::new("control"));
        for line in [&b""[..], b"start", b"start a/b", b"hello", b"event x", b"\xff", &[0; 496]] {
            assert!(fails(&mut bench, LINUX, line).contains("allowed: "));
        }
    }

    proptest! {
        #[test]
        fn whatever_comes_no_command_overtakes_another(
            lines in prop::collection::vec(
                (0u32..2, "(start|stop) [ab]|(ok|error) [1-9]( no)?|[a-z ]{0,9}"), 0..40),
        ) {
            let mut bench = Bench::new(Control::new("control").gain(1).trigger(ms(1)));
            // The unanswered command of each source of each pipeline.
            let mut open = std::collections::HashMap::new();
            for (from, line) in &lines {
                let request = Request::decode(line.as_bytes());
                if let Ok(Request::Start(source)) = &request {
                    open.retain(|_, (_, of)| of != source);
                }
                if let Ok(Request::Ok { number } | Request::Error { number, .. }) = &request
                    && open.get(number).is_some_and(|(peer, _)| peer == from)
                {
                    open.remove(number);
                }
                for (to, data) in bench.message(*from, line.as_bytes()).unwrap_or_default() {
                    let report = Report::decode(&data).unwrap();
                    let Report::Command { number, action } = report else { continue };
                    prop_assert!(!open.values().any(|(_, of)| of == action.source()), "{}", line);
                    open.insert(number, (to, action.source().clone()));
                }
            }
        }
    }
}
