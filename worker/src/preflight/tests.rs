use std::collections::{BTreeMap, BTreeSet};

use super::facts::Filter;
use super::row::{Verdict, is_fit};
use super::*;

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(ToString::to_string).collect()
}

/// A machine without a fault.
fn facts() -> Facts {
    Facts {
        root: true,
        capabilities: ["CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_SYS_RESOURCE"]
            .map(|name| (name, true))
            .into(),
        host_name: "Box-1".into(),
        cgroups: Cgroups::V2(names(&["cpu", "cpuset", "io", "memory", "pids"])),
        allow_cgroup_v1: false,
        kernel: Some((5, 13)),
        nf_tables: true,
        overlay: true,
        ip_forward: Some(true),
        bridge_filter: Some(true),
        nft: Filter::Works,
        tun: true,
        pod_network: true,
        wireguard: (51820, false, false),
        swap: Vec::new(),
        ports: PORTS.iter().map(|(port, _)| (*port, false)).collect(),
        space: Some(Space {
            path: "/var/lib".into(),
            free: 50 * GIB,
        }),
        bundle: Ok("11 files in /usr/lib/yoke-worker".into()),
        memory: Some(8 * GIB),
        programs: PROGRAMS
            .iter()
            .map(|(name, _, _)| (*name, Some(format!("/usr/bin/{name}").into())))
            .collect(),
        systemd: true,
        purpose: Purpose::Join,
        uplink: Ok(()),
        skew: Some(Ok(0)),
    }
}

fn with(change: impl FnOnce(&mut Facts)) -> Facts {
    let mut facts = facts();
    change(&mut facts);
    facts
}

fn find(facts: &Facts, check: &str) -> Row {
    let rows = inspect(facts);
    rows.into_iter()
        .find(|row| row.check == check)
        .unwrap_or_else(|| panic!("no row {check}"))
}

#[test]
fn a_fit_machine_passes_all_checks() {
    let rows = inspect(&facts());
    assert!(
        rows.iter().all(|row| row.verdict == Verdict::Ok && row.to_do.is_none()),
        "{rows:#?}"
    );
    assert!(is_fit(&rows));
    assert_eq!(find(&facts(), "name").found, "box-1");
    let text = report::to_text(&rows);
    assert!(
        text.ends_with("\nThis machine can be a worker. Warnings: 0\n"),
        "{text}"
    );
}

#[test]
fn each_problem_has_a_row() {
    use Verdict::{Failed, Warning};
    let v1 = || Cgroups::V1(names(&["cpu", "cpuset", "memory", "pids"]));
    let space = |free: u64| {
        Some(Space {
            path: "/var".into(),
            free,
        })
    };
    for (check, facts, verdict, found) in [
        ("user", with(|facts| facts.root = false), Failed, "not root"),
        (
            "capabilities",
            with(|facts| {
                facts.capabilities.remove("CAP_NET_ADMIN");
            }),
            Failed,
            "missing CAP_NET_ADMIN",
        ),
        (
            "capabilities",
            with(|facts| {
                facts.capabilities.insert("CAP_SYS_RESOURCE", false);
            }),
            Warning,
            "missing CAP_SYS_RESOURCE",
        ),
        (
            "name",
            with(|facts| facts.host_name = "a_b".into()),
            Failed,
            "\"a_b\" is not a valid Node name",
        ),
        (
            "control groups",
            with(|facts| facts.cgroups = Cgroups::None),
            Failed,
            "not mounted",
        ),
        (
            "control groups",
            with(|facts| facts.cgroups = Cgroups::V2(names(&["cpu", "cpuset", "pids"]))),
            Failed,
            "version 2 without memory",
        ),
        (
            "control groups",
            with(|facts| facts.cgroups = v1()),
            Failed,
            "version 1",
        ),
        (
            "control groups",
            with(|facts| (facts.cgroups, facts.allow_cgroup_v1) = (v1(), true)),
            Warning,
            "version 1",
        ),
        (
            "kernel",
            with(|facts| facts.kernel = Some((5, 12))),
            Warning,
            "5.12; kube-proxy needs 5.13 for its nftables mode",
        ),
        (
            "kernel",
            with(|facts| facts.kernel = None),
            Warning,
            "cannot read the version",
        ),
        (
            "kernel",
            with(|facts| (facts.kernel, facts.nf_tables) = (Some((6, 1)), false)),
            Warning,
            "6.1 without nf_tables, which kube-proxy needs for its nftables mode",
        ),
        ("overlayfs", with(|facts| facts.overlay = false), Failed, "not loaded"),
        (
            "forwarding",
            with(|facts| facts.ip_forward = Some(false)),
            Warning,
            "off until the first Pod starts",
        ),
        (
            "forwarding",
            with(|facts| facts.ip_forward = None),
            Failed,
            "net.ipv4.ip_forward cannot be read",
        ),
        (
            "bridge filter",
            with(|facts| facts.bridge_filter = Some(false)),
            Warning,
            "net.bridge.bridge-nf-call-iptables is 0",
        ),
        (
            "bridge filter",
            with(|facts| facts.bridge_filter = None),
            Warning,
            "br_netfilter is not loaded; the worker will try to load it",
        ),
        (
            "packet filter",
            with(|facts| facts.nft = Filter::Missing),
            Failed,
            "nft is not installed",
        ),
        (
            "packet filter",
            with(|facts| facts.nft = Filter::Refused("no such kernel module".into())),
            Failed,
            "no such kernel module",
        ),
        (
            "swap",
            with(|facts| facts.swap = vec!["/dev/sda2".into(), "/swap".into()]),
            Warning,
            "/dev/sda2, /swap",
        ),
        (
            "port 10250",
            with(|facts| {
                facts.ports.insert(10250, true);
            }),
            Failed,
            "taken",
        ),
        (
            "tun",
            with(|facts| facts.tun = false),
            Failed,
            "/dev/net/tun cannot be opened",
        ),
        (
            "port 51820/udp",
            with(|facts| facts.wireguard = (51820, false, true)),
            Failed,
            "taken",
        ),
        (
            "disk",
            with(|facts| facts.space = space(3 * GIB)),
            Failed,
            "3.0 GiB free at /var",
        ),
        (
            "disk",
            with(|facts| facts.space = space(9 * GIB)),
            Warning,
            "9.0 GiB free at /var",
        ),
        (
            "bundle",
            with(|facts| {
                facts.bundle = Err(Fault {
                    found: "there is no bundle in /b".into(),
                    to_do: "bring one",
                });
            }),
            Failed,
            "there is no bundle in /b",
        ),
        ("disk", with(|facts| facts.space = None), Warning, "cannot be read"),
        (
            "memory",
            with(|facts| facts.memory = Some(511 * MIB)),
            Failed,
            "511 MiB",
        ),
        (
            "memory",
            with(|facts| facts.memory = Some(GIB + GIB / 4)),
            Warning,
            "1.2 GiB",
        ),
        (
            "mount",
            with(|facts| {
                facts.programs.insert("mount", None);
            }),
            Failed,
            "not on PATH",
        ),
        (
            "systemd",
            with(|facts| facts.systemd = false),
            Failed,
            "not the init system",
        ),
        (
            "systemd",
            with(|facts| (facts.systemd, facts.purpose) = (false, Purpose::Any)),
            Warning,
            "not the init system",
        ),
        (
            "clock",
            with(|facts| facts.skew = Some(Ok(-6))),
            Warning,
            "6 s behind the API server",
        ),
        (
            "clock",
            with(|facts| facts.skew = Some(Ok(241))),
            Failed,
            "241 s ahead of the API server",
        ),
        (
            "clock",
            with(|facts| facts.skew = Some(Err("refused".into()))),
            Failed,
            "cannot read the time of the API server: refused",
        ),
    ] {
        let row = find(&facts, check);
        assert_eq!((row.verdict, row.found.as_str()), (verdict, found), "{check}");
        assert!(row.to_do.is_some(), "{check}: {found}: something can be done");
        assert_eq!(is_fit(&inspect(&facts)), verdict == Warning, "{check}: {found}");
    }
}

#[test]
fn without_a_token_no_clock_is_compared() {
    let rows = inspect(&with(|facts| facts.skew = None));
    assert!(rows.iter().all(|row| row.check != "clock"));
}

#[test]
fn a_worker_without_a_network_of_pods_needs_nothing_for_it() {
    let rows = inspect(&with(|facts| {
        facts.pod_network = false;
        facts.tun = false;
        facts.wireguard = (51820, true, true);
    }));
    assert!(is_fit(&rows), "{rows:#?}");
}

#[test]
fn a_table_says_what_to_do_beneath_what_is_wrong() {
    let rows = [
        Row::ok("user", "root"),
        Row::failed("port 10250", "taken", "end it"),
        Row::warning("swap", "/swap", "turn it off"),
    ];
    let expected = "\
ok       user        root
FAILED   port 10250  taken
                     -> end it
warning  swap        /swap
                     -> turn it off

This machine cannot be a worker yet. Failed: 1, warnings: 1
";
    assert_eq!(report::to_text(&rows), expected);
}

#[test]
fn scripts_read_json() {
    let rows = [Row::failed("port 10250", "taken", "end it"), Row::ok("user", "root")];
    let found: serde_json::Value = serde_json::from_str(&report::to_json(&rows)).unwrap();
    let expected = serde_json::json!({"fit": false, "checks": [
        {"check": "port 10250", "verdict": "failed", "found": "taken", "toDo": "end it"},
        {"check": "user", "verdict": "ok", "found": "root"},
    ]});
    assert_eq!(found, expected);
}

#[test]
fn a_sandbox_has_ports_and_settings_of_its_own() {
    let busy = |purpose, asked_for| {
        with(|facts| {
            facts.purpose = purpose;
            facts.ip_forward = Some(false);
            facts.ports = PORTS.iter().map(|(port, _)| (*port, true)).collect();
            facts.wireguard = (51820, asked_for, true);
            facts.uplink = Err("veth: Operation not supported".into());
        })
    };
    let verdicts = |facts: &Facts| -> BTreeMap<String, Verdict> {
        let rows = inspect(facts).into_iter();
        rows.filter(|row| row.verdict != Verdict::Ok)
            .map(|row| (row.check, row.verdict))
            .collect()
    };
    let named = |rows: &[(&str, Verdict)]| {
        rows.iter()
            .map(|(name, verdict)| ((*name).to_owned(), *verdict))
            .collect()
    };
    use Verdict::{Failed, Warning};
    let sandboxed: BTreeMap<String, Verdict> = named(&[("own network", Failed)]);
    assert_eq!(verdicts(&busy(Purpose::Sandbox, false)), sandboxed);
    let sandboxed = named(&[("own network", Failed), ("port 51820/udp", Failed)]);
    assert_eq!(verdicts(&busy(Purpose::Sandbox, true)), sandboxed);
    let others = named(&[
        ("forwarding", Warning),
        ("own network", Warning),
        ("port 10248", Failed),
        ("port 10250", Failed),
        ("port 51820/udp", Failed),
    ]);
    assert_eq!(verdicts(&busy(Purpose::Any, false)), others);
}
