//! Measuring how fast models run, and how near that is to what memory allows.
//!
//! ```text
//! config      a matrix of wishes -> configurations; what each is made to do
//! run         one configuration, once, in this process -> times and memory
//! child       the same in a process of its own
//! bandwidth   how fast N threads read memory that no cache holds
//! report      the runs of all rounds -> medians, spreads and shares of the limit
//! ```
//!
//! Every run is a process of its own: its memory is its own, its threads are as many as were asked
//! for, and where its weights happen to lie in memory is drawn anew each time. A round runs every
//! configuration once; whatever slows the machine for a while hits all of them alike. Ratios are taken
//! within a round, and then their median.

pub mod bandwidth;
pub mod child;
pub mod config;
pub mod report;
pub mod run;
pub mod spread;

pub use config::{Configuration, Matrix, Workload};
pub use report::{Candidate, Report};
pub use run::{Run, run};
pub use spread::Spread;
