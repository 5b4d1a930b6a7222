//! The loop: change a sequence, run it, keep it if it ran through what none before did.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use busbar::{Error, Result};

use crate::child::{Outcome, Runner};
use crate::corpus::{Corpus, read};
use crate::coverage::{Places, Symbols};
use crate::guest::Guest;
use crate::minimise::minimise;
use crate::mutate::Mutator;
use crate::reports::Reports;
use crate::sequence::Sequence;

/// So often what sequences leave behind is removed.
const TIDY: u64 = 200;
/// So many sequences may have been the cause of a report.
const SUSPECTS: usize = 8;
/// So many times a new sequence is run to make it shorter: what is new counts for more.
const SHORTEN: u32 = 40;
/// Time between two lines of what has been reached.
const SAID: Duration = Duration::from_secs(20);
/// So many times a sequence is run to see whether it reports.
const TRIES: u32 = 3;

/// What to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where sequences are kept.
    pub folder: PathBuf,
    /// How long.
    pub time: Duration,
    /// Where chance begins.
    pub seed: u64,
    /// Reports of the kernel that do not count.
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

    /// Fuzzes until the time is over or the kernel reports.
    ///
    /// # Errors
    /// A report; what ran before it is in the folder.
    pub fn run(&mut self, options: &Options) -> Result<()> {
        let mut corpus = Corpus::open(&options.folder)?;
        let mut random = Mutator::new(options.seed);
        let begun = Instant::now();
        let mut kept = Vec::new();
        for sequence in corpus.load()? {
            let new = self.reach(&sequence, &mut corpus)?;
            if !new.is_empty() {
                kept.push(sequence);
            }
        }
        self.say(begun, kept.len());
        if self.places.is_empty() {
            let why = std::io::Error::other("nothing was noted: is it built with KCOV?");
            return Err(Error::new("see", "what calls ran through", why));
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

    /// Runs a sequence; what it ran through that none before did.
    fn reach(&mut self, sequence: &Sequence, corpus: &mut Corpus) -> Result<Vec<u64>> {
        let outcome = self.attempt(sequence, corpus)?;
        let new = outcome.places.difference(&self.places).copied().collect();
        self.places.extend(&outcome.places);
        Ok(new)
    }

    /// Runs a sequence, and looks whether the kernel reports.
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

    /// A shorter sequence that still reaches all of these, if there is one.
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

    /// Runs the sequence of a file so many times; what each call returned.
    ///
    /// # Errors
    /// The kernel reports.
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

    /// The shortest sequence that still makes the kernel report.
    ///
    /// Of KASAN the kernel has to be started with `kasan_multi_shot`, and what lockdep reports it
    /// reports once.
    pub fn minimise(&mut self, file: &Path) -> Result<Sequence> {
        let sequence = read(file)?;
        let mut does_it = |sequence: &Sequence| {
            // A warning that is given once is given once more.
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

/// Each call and what it returned.
fn table(sequence: &Sequence, outcome: &Outcome) -> String {
    let line = |(step, result): (&crate::sequence::Step, &Option<i64>)| {
        let result = match result {
            None => "did not come back".to_owned(),
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
        text += "it did not come to its end\n";
    }
    text
}

#[allow(clippy::print_stdout)]
fn say(text: &str) {
    println!("{text}");
}
