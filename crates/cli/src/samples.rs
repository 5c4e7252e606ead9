//! Answers of a service, for tests of what shows them.
#![allow(clippy::unwrap_used)]

use towpath_service::api::{SocketStatus, Status, Tally};

/// A service that does nothing.
pub fn status() -> Status {
    let slow = serde_json::to_string(&Tally::default()).unwrap();
    let text = r#"{"version":"1.2.3","stack":"fast","pid":7,"uptime_us":0,"socket":"/run/t.sock","flow_groups":[],"clients":[],
        "policy":{"rules":0,"denied":0,"limited":0},"slow":SLOW}"#;
    serde_json::from_str(&text.replace("SLOW", &slow)).unwrap()
}

/// A listener of redis.
pub fn listener() -> SocketStatus {
    SocketStatus {
        state: "LISTEN".into(),
        recv_q: 0,
        send_q: 511,
        local: "0.0.0.0:6379".parse().unwrap(),
        peer: "0.0.0.0:0".parse().unwrap(),
        program: "redis-server".into(),
        pid: 42,
        uid: 1000,
        client: None,
        slot: 0,
        flow_group: None,
        direct: false,
        tcp: None,
        halves: None,
    }
}
