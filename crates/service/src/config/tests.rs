#![allow(clippy::unwrap_used)]
use super::*;
use crate::config::toml_error::line_of;

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(Path::new("towpath.toml"), text).map_err(|e| e.to_string())
}

#[test]
fn an_empty_file_is_the_default() {
    assert_eq!(parse("").unwrap(), Config::default());
    assert_eq!(Config::default().check(), Ok(()));
}

#[test]
fn every_key_is_read() {
    let text = r#"
        stack = "fast"
        auto = true
        guest_tap = "tap0"
        guest_address = "10.0.0.2/24"
        guest_gateway = "10.0.0.1"
        guest_kernel = "/boot/vmlinuz-6.1"
        guest_memory = "512MiB"
        remote = "unix:/run/remote.sock"
        token = "/etc/towpath/token"
        trust_network = false
        standby = "tap0"
        socket = "/run/towpath/towpath.sock"
        interface = "eth1"
        vlan = 7
        port = "xdp-generic"
        cores = 2
        cpus = [2, 3]
        admit = ["uid:1000", "all"]
        policy = ["deny connect port 25", "limit program nginx rate 1gbit"]
        policy_default = "deny"
        clients_per_user = 8
        sockets_per_client = 1024
        send_buffer = "256KiB"
        receive_buffer = "1MiB"
        send_buffer_max = "256KiB"
        receive_buffer_max = "1MiB"
        idle_memory = "1min"
        max_connections = 1000000
        spin = "50us"
        delayed_ack = "10ms"
        time_wait = "30s"
        congestion = "constant:10m"
        timestamps = false
        sack = false
        window_scaling = false
        ecn = 1
        syn_cookies = false
        mss_clamp = 1200
        direct = false
        sandbox = "off"
        firewall = "respect"
        idle_exit = "5min"
        netns = "blue"
        stacks = {}
    "#;
    let config = parse(text).unwrap();
    assert_eq!((config.cores, config.cpus), (CoresSetting::Fixed(2), vec![2, 3]));
    assert_eq!(parse("cores = \"auto\"\ncpus = [4, 5, 6]").unwrap().cores, CoresSetting::Auto);
    assert_eq!(config.admit, [Admit::Uid(1000), Admit::All]);
    assert_eq!(config.receive_buffer.get(), 1 << 20);
    assert_eq!(config.idle_exit, Some(Duration::from_secs(300)));
    assert_eq!((config.timestamps, config.sack, config.window_scaling, config.ecn), (false, false, false, 1));
    assert_eq!((config.syn_cookies, config.mss_clamp, config.direct), (false, 1200, false));
    assert_eq!((config.sandbox, config.firewall), (SandboxSetting::Off, FirewallSetting::Respect));
    assert_eq!((config.port, config.vlan), (PortSetting::XdpGeneric, VlanSetting::One(7)));
    let own = parse("interface = \"eth1\"\nfirewall = \"own\"").unwrap();
    assert_eq!(own.firewall, FirewallSetting::Own);
    let several = parse("interface = [\"eth1\", \"eth2\"]\nvlan = [7, 0]").unwrap();
    assert_eq!(several.vlan, VlanSetting::Each(vec![7, 0]));
    // The list of keys for messages is the list of fields.
    for key in KEYS {
        assert!(line_of(text, key) > 1, "{key}");
    }
}

#[test]
fn golden_errors() {
    let cases = [
        ("spin = 20\n", "towpath.toml:1: spin: 20 has no unit; write \"20us\", \"20ms\" or \"20s\""),
        ("cores = 1\nspin = \"20\"\n", "towpath.toml:2: spin: 20 has no unit; write \"20us\", \"20ms\" or \"20s\""),
        ("\n\nspinn = \"20us\"\n", "towpath.toml:3: unknown key \"spinn\"; did you mean \"spin\"?"),
        (
            "receive-buffer = \"1MiB\"\n",
            "towpath.toml:1: unknown key \"receive-buffer\"; did you mean \"receive_buffer\"?",
        ),
        (
            "token = \"/etc/token\"\ntrust_network = true\n",
            "towpath.toml:2: trust_network: a token is there so that the network need not be trusted; leave one of the two \
             out",
        ),
        (
            "interface = \"eth[1\"\n",
            "towpath.toml:1: interface: \"eth[1\" is no pattern: invalid range pattern; * stands for any text, ? for one \
             character, [ab] for one of several",
        ),
        (
            "interface = \"eth*\"\nvlan = 7\n",
            "towpath.toml:2: vlan: interfaces that a pattern chooses have no VLAN each; name the interfaces",
        ),
        (
            "interface = [\"default-route\", \"a\", \"b\", \"c\", \"d\", \"e\", \"f\", \"g\", \"h\", \"i\"]\n",
            "towpath.toml:1: interface: a pattern has 8 of the 16 places; name 8 at most beside it",
        ),
        (
            "interface = [\"a*\", \"b*\", \"c*\", \"d*\", \"e*\", \"f*\", \"g*\", \"h*\", \"i*\"]\n",
            "towpath.toml:1: interface: 9 patterns are too many; 8 is the most, with a place each",
        ),
        ("vlan = 4095\n", "towpath.toml:1: vlan: 4095 is outside 0 to 4094"),
        ("cores = 17\n", "towpath.toml:1: cores: 17 is outside 1 to 16"),
        ("cores = 2\ncpus = [1]\n", "towpath.toml:2: cpus: 1 named for 2 cores; name one CPU per core, or none"),
        ("cores = \"1-4\"\ncpus = [1]\n", "towpath.toml:2: cpus: 1 named for 4 cores; name one CPU per core, or none"),
        ("cores = \"4-1\"\n", "towpath.toml:1: cores: \"4-1\" is no range within 1 to 16"),
        ("cores = \"many\"\n", "towpath.toml:1: cores: \"many\" is no number of cores; write 2, \"1-4\" or \"auto\""),
        (
            "stack = \"uml\"\ncores = \"auto\"\n",
            "towpath.toml:2: cores: the cores of the other kernel are not the service's to choose; write a number",
        ),
        (
            "# rings\nsend_buffer = \"100KiB\"\n",
            "towpath.toml:2: send_buffer: 100KiB is not a power of two; the nearest are 64KiB and 128KiB",
        ),
        ("receive_buffer = \"1KiB\"\n", "towpath.toml:1: receive_buffer: 1KiB is outside 4KiB to 16MiB"),
        (
            "stack = \"kernel\"\nidle_memory = \"1s\"\n",
            "towpath.toml:2: idle_memory: only the fast stack's connections give memory back; leave it out",
        ),
        (
            "send_buffer_max = \"64KiB\"\n",
            "towpath.toml:1: send_buffer_max: 64KiB is less than the ring has at first, 128KiB",
        ),
        (
            "stack = \"kernel\"\nreceive_buffer_max = \"1MiB\"\n",
            "towpath.toml:2: receive_buffer_max: only the fast stack's rings grow; leave it out, or write the size that they have",
        ),
        ("sockets_per_client = 1000\n", "towpath.toml:1: sockets_per_client: 1000 is not a power of two; write 1024"),
        (
            "admit = [\"alice\"]\n",
            "towpath.toml:1: admit: \"alice\" names nobody; write \"user:alice\", \"group:alice\", \"uid:1000\" or \"all\"",
        ),
        (
            "congestion = \"vegas\"\n",
            "towpath.toml:1: congestion: \"vegas\" is not known; there are reno, cubic, dctcp, dctcp-rate, timely, bbr and \
             constant:RATE",
        ),
        (
            "stack = \"uml\"\nauto = true\n",
            "towpath.toml:2: auto: the other kernel has a network of its own; nothing can go either way",
        ),
        (
            "stack = \"qemu\"\nguest_memory = \"64MiB\"\n",
            "towpath.toml:2: guest_memory: 64MiB is outside 128MiB to 16GiB",
        ),
        ("admit = \"all\"\n", "towpath.toml:1: admit: \"all\" is no list; write admit = [\"all\"]"),
        ("cpus = 2\n", "towpath.toml:1: cpus: 2 is no list; write cpus = [2]"),
        ("policy = 3\n", "towpath.toml:1: policy: 3 is no list; write one such as policy = [\"deny connect port 25\"]"),
        (
            "admit = [\n  \"all\",\n  3,\n]\n",
            "towpath.toml:3: admit: its entries stand in quotes: admit = [\"uid:1000\"]",
        ),
        (
            "policy = [\n  \"deny connect port 25\",\n  \"deny connnect port 25\",\n]\n",
            "towpath.toml:3: policy: \"connnect\" is nothing that can be attempted; write connect, listen, accept or all",
        ),
        (
            "admit = [\n  \"all\",\n  \"alice\",\n]\n",
            "towpath.toml:3: admit: \"alice\" names nobody; write \"user:alice\", \"group:alice\", \"uid:1000\" or \"all\"",
        ),
        ("interface = eth0\n", "towpath.toml:1: interface: write it in quotes: interface = \"eth0\""),
        ("interface = 1\n", "towpath.toml:1: interface: write it in quotes: interface = \"1\""),
        (
            "interface = [eth1, eth2]\n",
            "towpath.toml:1: interface: its entries stand in quotes: interface = [\"eth1\", \"eth2\"]",
        ),
        ("interface = [1]\n", "towpath.toml:1: interface: its entries stand in quotes: interface = [\"eth1\"]"),
        (
            "interface = [\"a\", \"b\", \"a\"]\n",
            "towpath.toml:1: interface: \"a\" is named twice; for several of its VLANs name the kernel's device of each",
        ),
        (
            "interface = \"a\"\nvlan = 7\nport = \"packet\"\n",
            "towpath.toml:3: port: packet sockets serve no VLAN; use \"xdp\", or serve the kernel's device of the VLAN",
        ),
        (
            "interface = [\"a\", \"b\"]\nvlan = 7\n",
            "towpath.toml:2: vlan: 2 interfaces are named; write a number for each: vlan = [7, 7], 0 for untagged frames",
        ),
        (
            "interface = [\"a\", \"b\"]\nvlan = [7]\n",
            "towpath.toml:2: vlan: numbers and interfaces named: 1 and 2; write one for each, in their order, 0 for untagged \
             frames",
        ),
        ("interface = [\"a\", \"b\"]\nvlan = [7, 5000]\n", "towpath.toml:2: vlan: 5000 is outside 0 to 4094"),
        ("interface = [\"a\", \"b\"]\nvlan = [7, 70000]\n", "towpath.toml:2: vlan: 70000 is outside 0 to 65535"),
        (
            "interface = [\"a\", \"b\"]\nvlan = [0, 9]\nport = \"packet\"\n",
            "towpath.toml:3: port: packet sockets serve no VLAN; use \"xdp\", or serve the kernel's device of the VLAN",
        ),
        (
            "direct = \"yes\"\n",
            "towpath.toml:1: direct: \"yes\" is neither true nor false; write one of them, without quotes",
        ),
        ("max_connections = \"9\"\n", "towpath.toml:1: max_connections: \"9\" is no number; write max_connections = 9"),
        ("vlan = 70000\n", "towpath.toml:1: vlan: 70000 is outside 0 to 65535"),
        ("vlan = \"no\"\n", "towpath.toml:1: vlan: \"no\" is no number; write a whole one, from 0 to 65535"),
        (
            "stack = \"fst\"\n",
            "towpath.toml:1: stack: \"fst\" is not known; write \"fast\" or \"kernel\" or \"uml\" or \"qemu\" or \"remote\"",
        ),
        (
            "stacks = 3\n",
            "towpath.toml:1: stacks: 3 is no table; write [stacks.NAME] on a line of its own, and its keys below",
        ),
        (
            "stack = \"uml\"\nguest_address = \"10.0.0.2/24\"\n",
            "towpath.toml:2: guest_address: the guest has no network device that could have it; name its TAP device with \
             guest_tap (`ip tuntap add tap0 mode tap` makes one)",
        ),
        (
            "guest_tap = \"tap0\"\nguest_gateway = \"10.0.0.1\"\n",
            "towpath.toml:2: guest_gateway: a router is of no use without an address; name one with guest_address",
        ),
        (
            "guest_tap = \"tap0\"\nguest_address = \"10.0.0.2\"\n",
            "towpath.toml:2: guest_address: \"10.0.0.2\" is no address with its prefix length; write one such as \
             \"10.0.0.2/24\"",
        ),
        (
            "guest_tap = \"tap0\"\nguest_address = \"fd00::2/64\"\nguest_gateway = \"router\"\n",
            "towpath.toml:3: guest_gateway: \"router\" is no address; write one such as \"10.0.0.1\"",
        ),
        ("ecn = 3\n", "towpath.toml:1: ecn: 3 is outside 0 to 2"),
        (
            "firewall = \"own\"\n",
            "towpath.toml:1: firewall: \"own\" without an interface does nothing; name one with `interface`, or leave it out",
        ),
        (
            "interface = \"eth1\"\nvlan = 7\nfirewall = \"own\"\n",
            "towpath.toml:3: firewall: \"own\" serves no VLAN by its tag; serve the kernel's device of the VLAN, or write \
             \"respect\"",
        ),
        (
            "[stacks.red]\nstack = \"kernel\"\nfirewall = \"own\"\n",
            "towpath.toml:3: firewall: \"own\" is the fast stack's: a kernel's connections pass its firewall; leave it out \
             (stacks.red)",
        ),
        ("mss_clamp = 10\n", "towpath.toml:1: mss_clamp: 10 is outside 88 to 65495"),
        ("time_wait = \"1h\"\n", "towpath.toml:1: time_wait: 1h is outside 0us to 4min"),
    ];
    for (text, error) in cases {
        assert_eq!(parse(text).unwrap_err(), error, "for {text:?}");
    }
    let wrong = parse("colour = 1\n").unwrap_err();
    assert!(
        wrong.starts_with("towpath.toml:1: unknown key \"colour\"; the keys are stack, netns, stacks, auto, guest_tap, guest_address, guest_gateway, guest_kernel, guest_memory, remote, token, trust_network, standby, socket, interface"),
        "{wrong}"
    );
    let broken = parse("cores = \n").unwrap_err();
    assert!(broken.starts_with("towpath.toml:1: "), "{broken}");
}

#[test]
fn the_documentation_has_every_key_with_its_default() {
    let page = include_str!("../../../../docs/reference/configuration.md");
    let mut defaults = String::new();
    for key in KEYS {
        let row = page.lines().find(|line| line.starts_with(&format!("| `{key}` |")));
        let default = row.unwrap_or_else(|| panic!("no row for {key}")).split('|').nth(2).unwrap().trim();
        if let Some(value) = default.strip_prefix('`') {
            defaults += &format!("{key} = {}\n", value.trim_end_matches('`'));
        }
    }
    assert_eq!(parse(&defaults).unwrap(), Config::default());
    assert!(defaults.lines().count() >= 11, "{defaults}");
    // The page's example parses.
    let example = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    parse(example).unwrap();
}

#[test]
fn other_stacks_have_tables_of_their_own() {
    let text = "admit = [\"all\"]\npolicy = [\"stack blue all\"]\n[stacks.blue]\nstack = \"kernel\"\nnetns = \"blue\"\n\
                [stacks.red]\nadmit = [\"uid:7\"]\n";
    let config = parse(text).unwrap();
    let blue = config.of_stack("blue").unwrap();
    assert_eq!((blue.stack, blue.netns.as_deref(), blue.admit), (StackKind::Kernel, Some("blue"), vec![Admit::All]));
    assert!(blue.policy.is_empty(), "the policy is the file's own");
    assert_eq!(config.of_stack("red").unwrap().admit, [Admit::Uid(7)]);
    let error = config.of_stack("green").unwrap_err().to_string();
    assert_eq!(error, "the configuration has no [stacks.green]");
    for (text, why) in [
        (
            "policy = [\"stack blue all\"]\n",
            "towpath.toml:1: policy: there is no stack \"blue\"; the configuration names none",
        ),
        ("[stacks.kernel]\n", "\"kernel\" is what `--stack` calls another"),
        ("[stacks.\"a b\"]\n", "\"a b\" is no name for a stack"),
        ("[stacks.a.stacks.b]\n", "a stack in a stack is none"),
        ("[stacks.a]\ncores = 0\n", "towpath.toml:2: cores: 0 is outside 1 to 16 (stacks.a)"),
        ("[stacks.a]\ncolour = 1\n", "unknown key \"colour\""),
    ] {
        let error = parse(text).unwrap_err();
        assert!(error.contains(why), "{text}: {error}");
    }
}

#[test]
fn a_rule_about_joins_stands_once_and_both_stacks_have_it() {
    let rule = "join from blue to red on 10.1.0.2 port 80";
    let stacks = "[stacks.blue]\nnetns = \"b\"\n[stacks.guest]\nstack = \"kernel\"\n[stacks.red]\nnetns = \"r\"\n";
    let config = parse(&format!("policy = [\"deny all port 25\", \"{rule}\"]\n{stacks}")).unwrap();
    let rules = |config: &Config| config.own_policy().iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(rules(&config), ["deny all port 25"], "it is not about the service itself");
    let (blue, red) = (config.of_stack("blue").unwrap().checked().unwrap(), config.of_stack("red").unwrap());
    assert_eq!((rules(&blue), rules(&red)), (vec![rule.to_owned()], vec![rule.to_owned()]));
    assert!(rules(&config.of_stack("guest").unwrap()).is_empty());
    let others = |config: &Config| {
        let others = config.namespaces().others.into_iter();
        others.map(|other| (other.name, other.number, other.netns)).collect::<Vec<_>>()
    };
    let known = |name: &str, number, netns: Option<&str>| (name.to_owned(), number, netns.map(str::to_owned));
    let (home, b, r) = (known("home", 15, None), known("blue", 0, Some("b")), known("red", 2, Some("r")));
    assert_eq!(others(&config), [b.clone(), r.clone()], "by their numbers among all stacks");
    assert_eq!((others(&blue), others(&red)), (vec![home.clone(), r], vec![home, b]));
    assert_eq!(others(&config.of_stack("guest").unwrap()), [], "a kernel stack joins nobody");
    for (text, why) in [
        (format!("policy = [\"join from blue to home on 10.1.0.2\"]\n{stacks}"), None),
        (format!("policy = [\"join from blue to green on 10.1.0.2\"]\n{stacks}"), Some("no fast stack \"green\"")),
        (format!("policy = [\"join from home to guest on 10.1.0.2\"]\n{stacks}"), Some("no fast stack \"guest\"")),
        ("policy = [\"join from home to blue on 10.1.0.2\"]\n".into(), Some("there are none")),
        (format!("{stacks}policy = [\"join from blue to red on 10.1.0.2\"]\n"), None),
        (format!("{stacks}policy = [\"join from blue to home on 10.1.0.2\"]\n"), Some("this is the policy of \"red\"")),
    ] {
        match (parse(&text), why) {
            (Ok(_), None) => {}
            (Err(error), Some(why)) if error.contains(why) => {}
            (parsed, why) => panic!("{text}: {:?} and not {why:?}", parsed.err()),
        }
    }
}

#[test]
fn a_missing_file_is_named() {
    let error = Config::load(Path::new("/nonexistent/towpath.toml")).unwrap_err().to_string();
    assert_eq!(error, "/nonexistent/towpath.toml: No such file or directory (os error 2)");
}

#[test]
fn the_file_that_is_installed_has_every_key_with_its_default_or_an_example() {
    let file = include_str!("../../../../packaging/towpathd.toml");
    let (mut keys, mut defaults, mut example) = (Vec::new(), String::new(), false);
    for line in file.lines() {
        match line.strip_prefix('#').filter(|rest| !rest.is_empty() && !rest.starts_with([' ', '#'])) {
            None => example = line.contains("e.g."),
            Some("[stacks.blue]") => {
                keys.push("stacks");
                break;
            }
            Some(setting) => {
                let (key, _) = setting.split_once(" = ").unwrap();
                toml::from_str::<Config>(setting).unwrap_or_else(|error| panic!("{setting}: {error}"));
                keys.push(key);
                if !example {
                    defaults += &format!("{setting}\n");
                }
            }
        }
    }
    assert_eq!(parse(&defaults).unwrap(), Config::default());
    keys.sort_unstable();
    let mut all = KEYS;
    all.sort_unstable();
    assert_eq!(keys, all);
}
