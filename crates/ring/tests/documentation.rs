//! The tables of LAYOUT.md, against the types, the layout and the declarations.
#![allow(clippy::unwrap_used)]

use std::mem::offset_of;
use std::net::Ipv6Addr;
use towpath_ring::command::Accepted;
use towpath_ring::layout::{Header, QueueWords, SlotLines, VERSION};
use towpath_ring::pair::{BitmapWords, PairHeader, PairLines};
use towpath_ring::{
    AppLine, CommandLine, CountsLine, Geometry, InfoLine, Layout, OptionsLine, PairGeometry, StackLine,
};

const TEXT: &str = include_str!("../LAYOUT.md");
const SOURCES: [&str; 4] = [
    include_str!("../src/lines.rs"),
    include_str!("../src/layout.rs"),
    include_str!("../src/command.rs"),
    include_str!("../src/pair.rs"),
];

/// The cells of the table rows under a heading, without the table's own heading.
fn rows(heading: &str) -> Vec<Vec<&'static str>> {
    let start = TEXT.find(&format!("\n## {heading}\n")).unwrap_or_else(|| panic!("no section {heading}"));
    let section = &TEXT[start + 4..];
    let section = &section[..section.find("\n## ").unwrap_or(section.len())];
    let table = section.lines().filter(|line| line.starts_with('|'));
    table.skip(2).map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

/// The words of the options line, as its table lists them.
fn option_words() -> Vec<&'static str> {
    let table = include_str!("../src/options.rs");
    let body = &table[table.find("\noptions! {\n").unwrap()..];
    let words =
        body[..body.find("\n}").unwrap()].lines().filter_map(|line| line.split_once(" in [")?.1.strip_suffix("];"));
    ["seq"].into_iter().chain(words.flat_map(|words| words.split(", "))).collect()
}

/// The public fields in the declaration of a type.
fn declared(name: &str) -> Vec<&'static str> {
    let head = format!("pub struct {name} {{\n");
    let body = SOURCES.iter().find_map(|source| Some(&source[source.find(&head)? + head.len()..])).unwrap();
    let body = &body[..body.find("\n}").unwrap()];
    body.lines().filter_map(|line| line.trim().strip_prefix("pub ")?.split_once(": ")).map(|(field, _)| field).collect()
}

fn size_of_field<T, F>(_: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

/// Offset, size and name of the given fields.
macro_rules! fields {
    ($type:ident: $($field:ident)*) => {
        vec![$((offset_of!($type, $field), size_of_field(|it: &$type| &it.$field), stringify!($field))),*]
    };
}

fn check(name: &str, actual: Vec<(usize, usize, &str)>) {
    let names: Vec<_> = actual.iter().map(|field| field.2).collect();
    let declared = if name == "OptionsLine" { option_words() } else { declared(name) };
    assert_eq!(names, declared, "this test does not list the fields of {name}");
    let written: Vec<_> = rows(name)
        .iter()
        .map(|row| (row[0].parse::<usize>().unwrap(), row[1].parse::<usize>().unwrap(), row[2]))
        .collect();
    assert_eq!(written, actual, "the table of {name}");
}

#[test]
fn tables_tell_the_offsets_of_all_words() {
    check("Header", fields!(Header: magic version total_bytes token geometry));
    check("Geometry", fields!(Geometry: slots app_slots tx_bytes rx_bytes tx_most rx_most contexts flow_groups));
    check("SlotLines", fields!(SlotLines: app command options stack info));
    check(
        "AppLine",
        fields!(AppLine: tx_tail rx_head flags generation ctx_mask want sleepers data_seq ctl_seq urgent urgent_doorbell held_tail held_ms
            exclusive),
    );
    check(
        "CommandLine",
        fields!(CommandLine: seq op remote_addr remote_port local_addr local_port backlog flags accepting holder),
    );
    check(
        "StackLine",
        fields!(StackLine: tx_head rx_tail state status error event_seq generation flow_group data_ack ctl_ack
            command_done command_result urgent soft_error pair pair_slot),
    );
    check(
        "OptionsLine",
        fields!(OptionsLine: seq flags keep_idle_s keep_interval_s keep_count user_timeout_ms max_segment tos ttl
            congestion syn_retries linger2_s defer_accept_s pacing_low pacing_high tclass hops
            send_buffer receive_buffer not_sent_low_water window_clamp path_mtu_discovery least_hops fast_open
            send_delay_us priority mark),
    );
    check(
        "InfoLine",
        fields!(InfoLine: local_addr remote_addr ports tcp_state mss congestion retransmits agreed
            srtt_us rttvar_us min_rtt_us cwnd ssthresh send_window unacked unsent segments_in segments_out
            pacing_rate bytes_acked bytes_received timeouts probes ca_state window_shifts receive_mss marked
            sacked lost observed silent_ms delivery_rate busy_us window_limited_us file_bytes held),
    );
    check(
        "CountsLine",
        fields!(CountsLine: bytes_sent bytes_resent buffer_limited_us generation resent data_segments_in data_segments_out
            delivered duplicates reorderings out_of_order receive_window receive_threshold receive_space
            receive_rtt_us ack_delay_us reordering timeouts_total timeout_series timeout_ms data_silent_ms heard_ms
            passed_on),
    );
    check("QueueWords", fields!(QueueWords: tail head armed));
    check("PairHeader", fields!(PairHeader: magic version pair));
    check("PairLines", fields!(PairLines: line event_seq send_withheld receive_withheld));
    check("BitmapWords", fields!(BitmapWords: armed doorbell summary words));
    let parts = towpath_ring::pair::parts(PairGeometry { slots: 4096, ring_bytes: 262_144 });
    let written: Vec<usize> = rows("Pair region").iter().skip(2).map(|row| row[3].parse().unwrap()).collect();
    assert_eq!(written, parts);
    assert_eq!(PairGeometry::of(&Geometry::DEFAULT), PairGeometry { slots: 4096, ring_bytes: 262_144 });
    assert!(TEXT.contains(&format!("Version {VERSION}.")));
}

/// `Accepted` is encoded, not mapped: find each field's bytes by setting it alone.
#[test]
fn the_accept_record_is_as_written() {
    let zero = Accepted { slot: 0, generation: 0, remote_addr: Ipv6Addr::UNSPECIFIED, remote_port: 0 };
    let records = [
        Accepted { slot: u32::MAX, ..zero },
        Accepted { generation: u32::MAX, ..zero },
        Accepted { remote_addr: Ipv6Addr::from_bits(u128::MAX), ..zero },
        Accepted { remote_port: u16::MAX, ..zero },
    ];
    let table = rows("Accepted");
    assert_eq!(table.iter().map(|row| row[2]).collect::<Vec<_>>(), declared("Accepted"));
    for (record, row) in records.iter().zip(&table) {
        let bytes = record.to_bytes();
        let start = bytes.iter().position(|&b| b != 0).unwrap();
        let length = bytes.iter().filter(|&&b| b != 0).count();
        assert_eq!((row[0].parse(), row[1].parse()), (Ok(start), Ok(length)), "{}", row[2]);
        assert_eq!(Accepted::from_bytes(&bytes), *record);
    }
}

#[test]
fn the_parts_lie_where_the_table_says() {
    let geometry = Geometry::DEFAULT;
    let layout = Layout::new(geometry).unwrap();
    let first = layout.slot(0).unwrap();
    let actual = [
        0,
        layout.lines(first),
        layout.data_queue(0),
        layout.event(0, 0),
        layout.private(),
        layout.counts(first),
        layout.tx(first),
        layout.rx(first),
        layout.tx_more(first),
        layout.rx_more(first),
        layout.total_bytes(),
    ];
    let written: Vec<usize> = rows("Parts").iter().map(|row| row[3].parse().unwrap()).collect();
    assert_eq!(written, actual);
    let sentence = "S = 16384, `app_slots` = 8192, T = R = T' = R' = 131072, C = 64, K = 1";
    assert!(TEXT.contains(sentence));
    assert_eq!(
        geometry,
        Geometry {
            slots: 16_384,
            app_slots: 8192,
            tx_bytes: 131_072,
            rx_bytes: 131_072,
            tx_most: 0,
            rx_most: 0,
            contexts: 64,
            flow_groups: 1
        }
    );

    // The formulas, for sizes whose pages do not come out even.
    let page = |bytes: usize| bytes.next_multiple_of(4096);
    let odd = Geometry {
        slots: 64,
        app_slots: 60,
        tx_bytes: 4096,
        rx_bytes: 8192,
        tx_most: 16_384,
        rx_most: 32_768,
        contexts: 3,
        flow_groups: 2,
    };
    let layout = Layout::new(odd).unwrap();
    let (s, k, c) = (64, 2, 3);
    let data_queues = page(4096 + 512 * s);
    let events = data_queues + (k + 1) * page(256 + 4 * s);
    let private = events + c * (k + 1) * page(256 + 12 * s);
    let counts = page(private + 4096 + 128 * s);
    let tx = (counts + 128 * s).next_multiple_of(65_536);
    let rx = tx + s * 4096;
    assert_eq!(
        [
            layout.data_queue(0),
            layout.event(0, 0),
            layout.private(),
            layout.counts(first),
            layout.tx(first),
            layout.rx(first),
            layout.tx_more(first),
            layout.rx_more(first),
            layout.total_bytes()
        ],
        [data_queues, events, private, counts, tx, rx, rx + s * 8192, rx + s * 20_480, rx + s * 45_056]
    );
    assert_eq!(layout.event(1, 2), events + 5 * page(256 + 12 * s));
    let slot = layout.slot(9).unwrap();
    assert_eq!(layout.lines(slot), 4096 + 9 * 512);
    let queue = layout.event(1, 2);
    assert_eq!(layout.entries(queue), queue + 256);
    assert_eq!(layout.event_words(1, 2, slot), (queue + 256 + 4 * s + 36, queue + 256 + 8 * s + 36));
}
