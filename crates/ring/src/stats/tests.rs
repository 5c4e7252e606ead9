#![allow(clippy::unwrap_used)]
use super::*;

#[test]
fn both_sides_see_the_same_sums() {
    let (service, memfd) = StatsRegion::create().unwrap();
    let library = StatsRegion::map(memfd.as_fd()).unwrap();
    let key = ClassKey::connected(6379, true);
    let number = library.enter(key).unwrap();
    assert_eq!(library.enter(key), Some(number));
    let sums = &library.class(number).unwrap().by_carrier[CarriedBy::Kernel as usize];
    sums.calls.store(10, Relaxed);
    sums.cpu_calls.store(2, Relaxed);
    sums.cpu_ns.store(500, Relaxed);
    sums.waited(20_000);
    let read = service.find(key).unwrap().by_carrier[1].read();
    assert_eq!((read.calls, read.all_cpu_ns(), read.wait_count()), (10, Some(2500.0), 1));
    let median = read.median_wait_ns().unwrap();
    assert!((median / 20_000.0 - 1.0).abs() < 0.06, "{median}");
    assert_eq!(service.find(key).unwrap().by_carrier[0].read(), ClassStats::default());
    assert_eq!(service.keys().collect::<Vec<_>>(), [key]);
    assert!(service.find(ClassKey::connected(6379, false)).is_none());
}

#[test]
fn keys_survive_and_ports_without_a_meaning_are_one_class() {
    for key in
        [ClassKey::accepted(80), ClassKey::connected(443, false), ClassKey::connected(443, true), ClassKey::accepted(0)]
    {
        assert_eq!(ClassKey::of(key.word()), Some(key));
    }
    assert_eq!(ClassKey::connected(40_000, true), ClassKey::connected(50_000, true));
    assert_eq!((ClassKey::of(0), ClassKey::of(u64::MAX), ClassKey::of(1 << 40)), (None, None, None));
}

#[test]
fn a_stats_region_is_bounded_and_nonsense_in_it_is_read_without_harm() {
    let (region, memfd) = StatsRegion::create().unwrap();
    for port in 0..CLASSES as u16 {
        assert_eq!(region.enter(ClassKey::accepted(port)), Some(usize::from(port)));
    }
    assert_eq!((region.enter(ClassKey::accepted(9999)), region.class(CLASSES).is_none()), (None, true));
    let mapping = Mapping::new(memfd.as_fd(), BYTES, Access::ReadWrite).unwrap();
    // SAFETY: the mapping has `BYTES` bytes, and everything behind the header is atomics.
    unsafe { mapping.base.add(64).write_bytes(0xff, BYTES - 64) };
    assert_eq!(region.keys().count(), 0);
    let read = region.class(3).unwrap().by_carrier[0].read();
    assert!(read.plus(&read).bytes() == u64::MAX && read.median_wait_ns().is_some());
    assert_eq!(ClassStats::default().since(&read), ClassStats::default());
    assert!(read.all_cpu_ns().is_some_and(f64::is_finite) && read.goodput().is_some_and(f64::is_finite));
}

#[test]
fn the_median_is_where_half_of_the_waits_are() {
    let mut figures = ClassStats::default();
    assert_eq!(figures.median_wait_ns(), None);
    figures.waits[bucket(10_000)] = 51;
    figures.waits[bucket(1_000_000)] = 50;
    assert!(figures.median_wait_ns().unwrap() < 12_000.0);
    figures.waits[bucket(1_000_000)] = 52;
    assert!(figures.median_wait_ns().unwrap() > 900_000.0);
    assert_eq!((bucket(0), bucket(u64::MAX)), (0, BUCKETS - 1));
}

/// Stats whose numbers all differ, and are multiples of this.
fn numbers(unit: u64) -> ClassStats {
    ClassStats {
        connections: unit,
        calls: 2 * unit,
        received: 3 * unit,
        sent: 4 * unit,
        turns: 5 * unit,
        cpu_ns: 6 * unit,
        cpu_calls: 7 * unit,
        busy_ns: 8 * unit,
        busy_bytes: 9 * unit,
        waits: core::array::from_fn(|at| (at as u64 * unit) as u32),
    }
}

#[test]
fn each_counter_is_read_as_itself() {
    let (region, _memfd) = StatsRegion::create().unwrap();
    let sums = &region.class(0).unwrap().by_carrier[0];
    let expected = numbers(1);
    for (word, value) in [
        (&sums.connections, expected.connections),
        (&sums.calls, expected.calls),
        (&sums.received, expected.received),
        (&sums.sent, expected.sent),
        (&sums.turns, expected.turns),
        (&sums.cpu_ns, expected.cpu_ns),
        (&sums.cpu_calls, expected.cpu_calls),
        (&sums.busy_ns, expected.busy_ns),
        (&sums.busy_bytes, expected.busy_bytes),
    ] {
        word.store(value, Relaxed);
    }
    for (word, value) in sums.waits.iter().zip(expected.waits) {
        word.store(value, Relaxed);
    }
    assert_eq!(sums.read(), expected);
}

#[test]
fn stats_are_added_and_subtracted_number_by_number() {
    assert_eq!((numbers(2).plus(&numbers(3)), numbers(5).since(&numbers(3))), (numbers(5), numbers(2)));
    assert_eq!((numbers(1).bytes(), numbers(1).wait_count()), (7, (0..160).sum()));
}

#[test]
fn rates_are_those_of_what_was_measured() {
    let stats =
        ClassStats { calls: 10, cpu_calls: 4, cpu_ns: 200, busy_ns: 500, busy_bytes: 3, ..ClassStats::default() };
    assert_eq!((stats.all_cpu_ns(), stats.goodput()), (Some(500.0), Some(6_000_000.0)));
    let nothing = ClassStats { calls: 10, cpu_ns: 7, busy_bytes: 9, ..ClassStats::default() };
    assert_eq!((nothing.all_cpu_ns(), nothing.goodput()), (None, None));
}

#[test]
fn a_doubling_has_eight_buckets_from_a_microsecond_to_a_second() {
    for (ns, expected) in [(0, 0), (1000, 0), (1999, 7), (2000, 8), (4000, 16), (1_048_576_000, 159), (u64::MAX, 159)] {
        assert_eq!(bucket(ns), expected, "{ns}");
    }
    let middle = |bucket| (time_of(bucket), 1000.0 * (bucket as f64 / 8.0 + 1.0 / 16.0).exp2());
    for at in [0, 8, 159] {
        let (time, expected) = middle(at);
        assert!((time / expected - 1.0).abs() < 1e-12, "{at}");
        assert_eq!(bucket(time as u64), at);
    }
}

#[test]
fn the_median_is_the_middle_wait_and_the_lower_of_two() {
    let median = |waits: &[(usize, u32)]| {
        let mut stats = ClassStats::default();
        waits.iter().for_each(|(at, count)| stats.waits[*at] = *count);
        stats.median_wait_ns()
    };
    assert_eq!(median(&[(0, 1)]), Some(time_of(0)));
    assert_eq!(median(&[(3, 1), (9, 1)]), Some(time_of(3)));
    assert_eq!(median(&[(3, 1), (9, 2)]), Some(time_of(9)));
    assert_eq!(median(&[(3, 2), (9, 1)]), Some(time_of(3)));
}

#[test]
fn ports_have_a_meaning_up_to_those_that_the_kernel_picks() {
    let port = |port| (ClassKey::accepted(port).port, ClassKey::connected(port, false).port);
    assert_eq!([port(1), port(32_767), port(32_768), port(65_535)], [(1, 1), (32_767, 32_767), (0, 0), (0, 0)]);
    assert_eq!(CarriedBy::BOTH.map(CarriedBy::other), [CarriedBy::Kernel, CarriedBy::Stack]);
    for word in [1 << 32 | 1 << 18, 1 << 33, 1 << 31, 3 << 32, 443] {
        assert_eq!(ClassKey::of(word), None, "{word:#x}");
    }
}

#[test]
fn what_is_no_stats_region_is_not_mapped() {
    let (_region, memfd) = StatsRegion::create().unwrap();
    assert!(StatsRegion::map(memfd.as_fd()).is_ok());
    for at in [0, 8, 12] {
        let mut before = [0; 1];
        rustix::io::pread(&memfd, &mut before, at).unwrap();
        rustix::io::pwrite(&memfd, &[before[0] ^ 1], at).unwrap();
        assert!(StatsRegion::map(memfd.as_fd()).is_err(), "byte {at}");
        rustix::io::pwrite(&memfd, &before, at).unwrap();
    }
    let (_report, other) = crate::report::Report::create().unwrap();
    assert!(StatsRegion::map(other.as_fd()).is_err(), "of another size");
}
