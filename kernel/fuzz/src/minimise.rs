//! Minimises a sequence while a condition holds.

use crate::sequence::Sequence;

/// Removes calls, faults, threads and rounds as long as `does_it` returns true for the rest.
pub fn minimise(sequence: &Sequence, does_it: &mut dyn FnMut(&Sequence) -> bool) -> Sequence {
    let mut best = sequence.clone();
    loop {
        let before = best.clone();
        for index in (0..best.steps.len()).rev() {
            attempt(&mut best, does_it, |shorter| *shorter = shorter.without(index));
        }
        attempt(&mut best, does_it, |simpler| simpler.rounds = 1);
        for index in 0..best.steps.len() {
            attempt(&mut best, does_it, |simpler| simpler.steps[index].fault = 0);
            attempt(&mut best, does_it, |simpler| simpler.steps[index].thread = 0);
        }
        if best == before {
            return best;
        }
    }
}

fn attempt(
    best: &mut Sequence,
    does_it: &mut dyn FnMut(&Sequence) -> bool,
    change: impl FnOnce(&mut Sequence),
) {
    let mut changed = best.clone();
    change(&mut changed);
    if changed != *best && does_it(&changed) {
        *best = changed;
    }
}
