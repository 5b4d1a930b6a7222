//! Busbar benchmarks: baseline and Busbar in turn.
