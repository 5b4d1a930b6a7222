//! The main loop: changes a sequence, runs it, and keeps it if it reaches new places.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use busbar::{Error, Result};

use crate::child::{MOMENT, Outcome, Runner};
use crate::corpus::{Corpus, read};
use crate::coverage::{Places, Symbols};
use crate::guest::Guest;
use crate::minimise::minimise;
use crate::mutate::Mutator;
use crate::reports::Reports;
use crate::sequence::Sequence;

/// Number of sequences between two clean-ups of the guest.
const TIDY: u64 = 200;
/// Number of last sequences that are saved with a report.
const SUSPECTS: usize = 8;
/// Most runs for shortening a new sequence; it is small, as reaching new places is more useful.
const SHORTEN: u32 = 40;
/// Interval at which the seeds' blocking calls are interrupted: their connections and messages have to arrive on a busy
/// machine, too, as changes of a seed that got no answer seldom get one.
const SEED_MOMENT: Duration = Duration::from_millis(500);
/// Time between two progress lines.
const SAID: Duration = Duration::from_secs(20);
/// Number of runs in which a sequence must cause a report.
const TRIES: u32 = 3;

/// Options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Folder of the corpus.
    pub folder: PathBuf,
    /// Duration of the run.
    pub time: Duration,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Texts of kernel reports that are ignored.
    pub known: Vec<String>,
}

/// A fuzzer in the guest.
pub struct Fuzzer {
    guest: Guest,
    runner: Runner,
    reports: Reports,
    symbols: Symbols,
    places: Places,
    last: VecDeque<Sequence>,
    count: u64,
}

impl Fuzzer {
    /// Sets the guest up.
    pub fn new(known: Vec<String>) -> Result<Self> {
        let guest = Guest::up()?;
        let runner = Runner::new(guest.numbers.clone())?;
        if !runner.can_fail() {
            say("calls cannot be made to fail: this kernel has no fault injection");
        }
        Ok(Self {
            runner,
            reports: Reports::open(known)?,
            symbols: Symbols::read()?,
            guest,
            places: Places::default(),
            last: VecDeque::new(),
            count: 0,
        })
    }

    /// Fuzzes until the time is over or the kernel reports a fault.
    ///
    /// # Errors
    /// The kernel reported a fault; the last sequences are in the folder.
    pub fn run(&mut self, options: &Options) -> Result<()> {
        let mut corpus = Corpus::open(&options.folder)?;
        let mut random = Mutator::new(options.seed);
        let begun = Instant::now();
        let mut kept = Vec::new();
        let (seeds, others) = corpus.load()?;
        for (sequences, moment) in [(seeds, SEED_MOMENT), (others, MOMENT)] {
            self.runner.moment = moment;
            for sequence in sequences {
                let new = self.reach(&sequence, &mut corpus)?;
                if !new.is_empty() {
                    kept.push(sequence);
                }
            }
        }
        self.say(begun, kept.len());
        if self.places.is_empty() {
            let why =
                std::io::Error::other("no coverage was recorded: is the kernel built with KCOV?");
            return Err(Error::new("read", "the coverage of calls", why));
        }
        let mut said = Instant::now();
        while begun.elapsed() < options.time {
            let (from, other) = (random.choose(&kept).clone(), random.choose(&kept).clone());
            let sequence = match self.count % 5 {
                0 => random.create(),
                _ => random.change(&from, &other),
            };
            let new = self.reach(&sequence, &mut corpus)?;
            if !new.is_empty() {
                let short = self.shorten(&sequence, &new, &mut corpus)?;
                corpus.keep(&short)?;
                kept.push(short);
            }
            if self.count.is_multiple_of(TIDY) {
                self.guest.tidy()?;
            }
            if said.elapsed() > SAID {
                self.say(begun, kept.len());
                said = Instant::now();
            }
        }
        self.say(begun, kept.len());
        corpus.note("coverage.txt", &self.symbols.by_function(&self.places))
    }

    /// Runs a sequence and returns the places that no earlier one has reached.
    fn reach(&mut self, sequence: &Sequence, corpus: &mut Corpus) -> Result<Vec<u64>> {
        let outcome = self.attempt(sequence, corpus)?;
        let new = outcome.places.difference(&self.places).copied().collect();
        self.places.extend(&outcome.places);
        Ok(new)
    }

    /// Runs a sequence and fails if the kernel reports a fault.
    fn attempt(&mut self, sequence: &Sequence, corpus: &mut Corpus) -> Result<Outcome> {
        corpus.running(sequence)?;
        self.count += 1;
        self.last.push_front(sequence.clone());
        self.last.truncate(SUSPECTS);
        let outcome = self.runner.run(sequence);
        let reports = self.reports.take();
        if reports.is_empty() && outcome.is_ok() {
            return outcome;
        }
        let text = match &outcome {
            Err(why) => format!("{why}\n"),
            Ok(_) => reports.concat(),
        };
        let folder = corpus.report(&text, self.last.make_contiguous())?;
        let why = std::io::Error::other(format!("the kernel reports:\n{text}"));
        Err(Error::new("run", format!("sequence {}", self.count), why)
            .help(format!("{} has the report and the last sequences", folder.display())))
    }

    /// Returns a shorter sequence that still reaches all of these places, if there is one.
    fn shorten(
        &mut self,
        sequence: &Sequence,
        new: &[u64],
        corpus: &mut Corpus,
    ) -> Result<Sequence> {
        let (mut trouble, mut left) = (None, SHORTEN);
        let short = minimise(sequence, &mut |shorter| {
            if trouble.is_some() || shorter.steps.is_empty() || left == 0 {
                return false;
            }
            left -= 1;
            match self.attempt(shorter, corpus) {
                Ok(outcome) => {
                    self.places.extend(&outcome.places);
                    new.iter().all(|place| outcome.places.contains(place))
                }
                Err(why) => {
                    trouble = Some(why);
                    false
                }
            }
        });
        trouble.map_or(Ok(short), Err)
    }

    /// Runs the sequence of a file this number of times and returns the results of its calls.
    ///
    /// # Errors
    /// The kernel reports a fault.
    pub fn replay(&mut self, file: &Path, times: u32) -> Result<String> {
        let sequence = read(file)?;
        let mut text = String::new();
        for _ in 0..times {
            let outcome = self.runner.run(&sequence)?;
            text = table(&sequence, &outcome);
            let reports = self.reports.take();
            if !reports.is_empty() {
                let why = std::io::Error::other(format!("{text}{}", reports.concat()));
                return Err(Error::new("replay", file.display().to_string(), why));
            }
            self.places.extend(&outcome.places);
        }
        Ok(text + &self.symbols.by_function(&self.places))
    }

    /// Returns the shortest sequence that still makes the kernel report a fault.
    ///
    /// For reports of KASAN the kernel needs the parameter `kasan_multi_shot`. Faults that lockdep finds
    /// cannot be minimised, as lockdep reports once per boot.
    pub fn minimise(&mut self, file: &Path) -> Result<Sequence> {
        let sequence = read(file)?;
        let mut does_it = |sequence: &Sequence| {
            // Lets WARN_ONCE() warn again.
            let _ = std::fs::write("/sys/kernel/debug/clear_warn_once", "1");
            (0..TRIES)
                .any(|_| self.runner.run(sequence).is_err() || !self.reports.take().is_empty())
        };
        if !does_it(&sequence) {
            let why = std::io::Error::other("the kernel does not report anything");
            return Err(Error::new("minimise", file.display().to_string(), why));
        }
        Ok(minimise(&sequence, &mut does_it))
    }

    fn say(&self, begun: Instant, kept: usize) {
        let modules = self.symbols.by_module(&self.places);
        let modules: Vec<_> =
            modules.iter().map(|(name, count)| format!("{name} {count}")).collect();
        let seconds = begun.elapsed().as_secs();
        let (count, places) = (self.count, self.places.len());
        say(&format!(
            "{seconds} s: {count} sequences, {kept} kept, {places} places: {}",
            modules.join(", ")
        ));
    }
}

/// Formats each call with its result.
fn table(sequence: &Sequence, outcome: &Outcome) -> String {
    let line = |(step, result): (&crate::sequence::Step, &Option<i64>)| {
        let result = match result {
            None => "did not return".to_owned(),
            Some(error @ ..0) => {
                rustix::io::Errno::from_raw_os_error(i32::try_from(-error).unwrap_or(libc::EIO))
                    .to_string()
            }
            Some(result) => format!("{result:#x}"),
        };
        format!("{step} = {result}\n")
    };
    let mut text: String = sequence.steps.iter().zip(&outcome.results).map(line).collect();
    if !outcome.ended {
        text += "the sequence did not end\n";
    }
    text
}

#[allow(clippy::print_stdout)]
fn say(text: &str) {
    println!("{text}");
}
