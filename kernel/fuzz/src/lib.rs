//! A fuzzer for system calls of Busbar's kernel parts: see README.md.

pub mod calls;
mod child;
mod corpus;
mod coverage;
pub mod describe;
pub mod fuzzer;
mod guest;
mod image;
pub mod minimise;
pub mod mutate;
mod reports;
pub mod sequence;
mod unsafe_calls;
