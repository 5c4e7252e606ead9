#![allow(clippy::unwrap_used)]
use super::*;
use crate::samples;
use std::collections::BTreeSet;
use towpath_service::api::{
    ClientStatus, ConfigurationStatus, EndedStatus, FlowGroupStatus, InterfaceStatus, ModuleLine, NamedPort,
    NumberedFlowGroup, PortStatus, WorkerStatus,
};

/// A status in which everything occurs.
fn full() -> Status {
    let named = |counts: &[(&'static str, u64)]| counts.iter().copied().collect::<NamedCounts>();
    let slow = Tally { drops: named(&[("no_socket", 2)]), opened: 3, resets: 1, ..Tally::default() };
    let (kernel, listeners) = (named(&[("policy", 4), ("stack", 5), ("join", 6)]), named(&[("taken", 8)]));
    let mut status = Status { uptime_us: 2_500_000, slow, kernel, listeners, ..samples::status() };
    (status.policy.rules, status.policy.denied) = (1, 9);
    (status.policy.generation, status.policy.hash) = (Some(17), Some("ab".into()));
    let (hash, restart) = (Some("cd".to_owned()), vec!["cores".to_owned()]);
    status.configuration = Some(ConfigurationStatus { file: None, generation: 18, hash, restart });
    let tally = Tally { stages: [("pre", 10)].into_iter().collect(), retransmits: 11, ..Tally::default() };
    // 2 of less than 8 µs, 3 from 8 on, 5 from 16 on, and one of a minute.
    let counts = [vec![2, 0, 0, 3, 5], vec![0; 20], vec![1]].concat();
    let round_trips = SpreadStatus { sum_us: 60_000_100, counts };
    let requests = SpreadStatus { sum_us: 7, counts: vec![0, 0, 1] };
    let port = PortStatus { rx_frames: 12, tx_frames: 13, ..PortStatus::default() };
    status.flow_groups.push(NumberedFlowGroup {
        flow_group: 0,
        status: FlowGroupStatus { tally, flows: 14, round_trips, requests, ..FlowGroupStatus::default() },
        ports: vec![NamedPort { name: "eth1".into(), status: port }],
    });
    status.workers.push(WorkerStatus { busy_us: 1_500_000, ..WorkerStatus::default() });
    let interface = InterfaceStatus { name: "eth1".into(), up: true, carrier: true, ..InterfaceStatus::default() };
    status.interfaces.push(interface);
    status.clients.push(ClientStatus { busy_us: 1_000_000, ..client(1000, "a\"b\n", 15) });
    let ended = |uid, program: &str| EndedStatus { uid, program: program.into(), busy_us: 500_000 };
    status.ended = vec![ended(1000, "a\"b\n"), ended(7, "gone"), ended(u32::MAX, "other")];
    status
}

fn client(uid: u32, name: &str, slots: u32) -> ClientStatus {
    let text = r#"{"id":1,"uid":0,"pid":1,"program":"","slots":0,"contract_violations":0,"leaving":false}"#;
    let client: ClientStatus = serde_json::from_str(text).unwrap();
    ClientStatus { uid, name: name.into(), slots, ..client }
}

fn reading(status: Status) -> Reading {
    let module = ModuleLine {
        name: "wall".into(),
        hook: "ingress".into(),
        priority: 0,
        program: "firewall".into(),
        tenant: "wall".into(),
        budget: 100,
        detached: false,
        app: None,
        direct: false,
        compiled: true,
        copies: false,
        counts: [("pass", 16)].into_iter().collect(),
        maps: Vec::new(),
    };
    let modules = Some(ModuleList { modules: vec![module] });
    Reading { stack: "home".into(), status: Some(status), modules }
}

/// The names of metrics in a text.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let names = words.filter(|word| word.starts_with("towpath_"));
    let suffixes = ["_total", "_bucket", "_sum", "_count"];
    names.map(|name| suffixes.iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name)).collect()
}

#[test]
fn what_a_service_counts_is_on_the_page() {
    let page = page(&[reading(full()), Reading { stack: "blue".into(), status: None, modules: None }]);
    for line in [
        "towpath_up{stack=\"home\"} 1.0",
        "towpath_up{stack=\"blue\"} 0.0",
        "towpath_info{stack=\"home\",version=\"1.2.3\",kind=\"fast\",sandbox=\"off\"} 1.0",
        "towpath_uptime_seconds{stack=\"home\"} 2.5",
        "towpath_worker_busy_seconds_total{stack=\"home\",worker=\"0\"} 1.5",
        "towpath_connections{stack=\"home\",flow_group=\"0\"} 14.0",
        "towpath_stage_items_total{stack=\"home\",flow_group=\"0\",stage=\"pre\"} 10.0",
        "towpath_dropped_frames_total{stack=\"home\",flow_group=\"slow path\",reason=\"no_socket\"} 2.0",
        "towpath_retransmitted_segments_total{stack=\"home\",flow_group=\"0\"} 11.0",
        "towpath_round_trip_seconds_bucket{le=\"0.000008\",stack=\"home\"} 2",
        "towpath_round_trip_seconds_bucket{le=\"0.000016\",stack=\"home\"} 5",
        "towpath_round_trip_seconds_bucket{le=\"16.777216\",stack=\"home\"} 10",
        "towpath_round_trip_seconds_bucket{le=\"+Inf\",stack=\"home\"} 11",
        "towpath_round_trip_seconds_sum{stack=\"home\"} 60.0001",
        "towpath_request_seconds_count{stack=\"home\"} 1",
        "towpath_port_frames_total{stack=\"home\",flow_group=\"0\",port=\"eth1\",direction=\"sent\"} 13.0",
        "towpath_interface_serving{stack=\"home\",interface=\"eth1\"} 0.0",
        "towpath_left_to_kernel_total{stack=\"home\",reason=\"policy\"} 4.0",
        "towpath_given_to_stacks_total{stack=\"home\"} 5.0",
        "towpath_asked_to_join_total{stack=\"home\"} 6.0",
        "towpath_listener_syns_total{stack=\"home\",outcome=\"taken\"} 8.0",
        "towpath_policy_denied_total{stack=\"home\"} 9.0",
        "towpath_policy_info{stack=\"home\",hash=\"ab\"} 1.0",
        "towpath_policy_generation{stack=\"home\"} 17.0",
        "towpath_configuration_info{stack=\"home\",hash=\"cd\"} 1.0",
        "towpath_configuration_generation{stack=\"home\"} 18.0",
        "towpath_configuration_restart_keys{stack=\"home\"} 1.0",
        "towpath_sockets{stack=\"home\",uid=\"1000\",program=\"a\\\"b\\n\"} 15.0",
        "towpath_program_busy_seconds_total{stack=\"home\",uid=\"1000\",program=\"a\\\"b\\n\"} 1.5",
        "towpath_program_busy_seconds_total{stack=\"home\",uid=\"7\",program=\"gone\"} 0.5",
        "towpath_program_busy_seconds_total{stack=\"home\",uid=\"other\",program=\"other\"} 0.5",
        "towpath_module_frames_total{stack=\"home\",module=\"wall\",hook=\"ingress\",action=\"pass\"} 16.0",
    ] {
        assert!(page.lines().any(|found| found == line), "{line} is missing in\n{page}");
    }
    assert!(page.ends_with("# EOF\n"));
    assert!(!page.contains("reason=\"join\""), "what is asked to join is not left to the kernel");
}

#[test]
fn a_user_with_many_programs_does_not_make_the_page_long() {
    let mut status = full();
    status.clients = (0..1000).map(|number| client(1000, &format!("p{number}"), number)).collect();
    // Nor does he hide those of others.
    status.clients.push(client(999, "redis-server", 1));
    status.clients.extend((2000..2200).map(|uid| client(uid, "x", 0)));
    let page = page(&[reading(status)]);
    let sockets: Vec<&str> = page.lines().filter(|line| line.starts_with("towpath_sockets{")).collect();
    assert_eq!(sockets.len(), MOST_PROGRAMS + 1 + MOST_USERS);
    let has = |line: &str| assert!(sockets.contains(&line), "{line} is missing in {sockets:?}");
    has("towpath_sockets{stack=\"home\",uid=\"1000\",program=\"p999\"} 999.0");
    has("towpath_sockets{stack=\"home\",uid=\"999\",program=\"redis-server\"} 1.0");
    let rest: u32 = (0..990).sum();
    has(&format!("towpath_sockets{{stack=\"home\",uid=\"1000\",program=\"other\"}} {rest}.0"));
    has("towpath_sockets{stack=\"home\",uid=\"other\",program=\"other\"} 0.0");
}

#[test]
fn page_guide_alerts_and_dashboard_know_the_same_names() {
    let page = page(&[reading(full())]);
    let on_page = names(&page);
    let guide = include_str!("../../../../../docs/guide/metrics.md");
    let told: BTreeSet<&str> = names(guide);
    assert_eq!(told, on_page);
    for used in [
        include_str!("../../../../../packaging/prometheus/towpath.rules.yml"),
        include_str!("../../../../../packaging/prometheus/towpath.test.yml"),
        include_str!("../../../../../packaging/grafana/towpath.json"),
    ] {
        let unknown: Vec<&str> = names(used).difference(&on_page).copied().collect();
        assert_eq!(unknown, Vec::<&str>::new());
    }
    serde_json::from_str::<serde_json::Value>(include_str!("../../../../../packaging/grafana/towpath.json")).unwrap();
}
