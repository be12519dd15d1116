//! Answers from data sets on a disk: compared with a script, and while the data set grows or is
//! damaged.

mod evaluate;
mod inspect;
mod view;
