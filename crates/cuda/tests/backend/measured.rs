//! The way figures are taken, on air: what is measured runs, what does not fit says so. The figures themselves mean nothing here.

use furrow_cuda::backend::Options;
use furrow_cuda::measure::{Subject, Yardstick, rates};
use furrow_model::backend::Room;
use furrow_model::config::Config;

use crate::air::Air;
use crate::case::BYTES;
use crate::made;

#[test]
fn every_figure_is_taken_or_does_not_fit() {
    let config = Config::read(made::checkpoint()).unwrap();
    let room = Room { slots: 2, pages: 4, rows_max: 8, logits_max: 2, features: 1 };
    let (mut air, _) = Air::new(BYTES);
    let found = rates(&mut air, Yardstick { bytes: 1 << 16, side: 16 }, 1).unwrap();
    assert!(found.bandwidth > 0.0 && found.flops > 0.0, "{found:?}");
    let mut subject = Subject::open(&config, room, Options::default(), Box::new(air), 1).unwrap();
    assert!(subject.device().plan().total() > 0);
    assert!(subject.decode(2, 70).unwrap().is_some());
    assert!(subject.decode(3, 0).unwrap().is_none(), "slots");
    assert!(subject.decode(2, 128).unwrap().is_none(), "pages");
    assert!(subject.prefill(11, 64, 8).unwrap().is_some());
    assert!(subject.prefill(11, 250, 8).unwrap().is_none(), "pages");
    assert!(subject.prefill(11, 0, 9).unwrap().is_none(), "rows");
    assert!(subject.vision(1).unwrap().is_some());
    assert!(subject.vision(2).unwrap().is_none(), "places");
    assert!(subject.fork().unwrap().is_some());
    assert!(subject.park(70).unwrap().is_some());
    assert!(subject.park(257).unwrap().is_none(), "pages");
}
