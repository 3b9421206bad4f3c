use super::*;

const NOW: &str = "2026-03-01T00:00:00Z";

fn now() -> Timestamp {
    NOW.parse().unwrap()
}

fn cluster(status: &str) -> Cluster {
    let text = format!(
        "{{apiVersion: yoke.drzzl.io/v1alpha1, kind: Cluster, metadata: {{name: demo, namespace: t, creationTimestamp: \
         '2026-02-28T23:58:30Z'}}, spec: {{}}, status: {status}}}"
    );
    serde_saphyr::from_str(&text).unwrap()
}

const RUNNING: &str = "{version: v1.35.4, phase: Running, nodes: 0, endpoint: {url: 'https://d:8443', serverName: d, address: \
     'https://a:8443', audience: x, issuer: x}, kubeconfigRef: {name: demo-kubeconfig}, pki: {current: {generation: 1, notAfter: \
     '2027-03-01T00:00:00Z'}}, usage: {awakeSeconds: 3600, awakeSince: '2026-02-28T23:30:00Z', pricePerHour: 0.10 EUR}, conditions: [{type: Ready, status: 'True', reason: AsExpected, message: The API answers., \
     lastTransitionTime: '2026-02-28T23:59:00Z'}]}";

#[test]
fn rows_have_the_columns_asked_for() {
    let table = |status: &str, columns| {
        let mut table = cluster_table(columns);
        table.push(cluster_row(&cluster(status), columns, now()));
        table.to_text()
    };
    assert_eq!(
        table(RUNNING, Columns::default()),
        "NAME   VERSION   PHASE     READY   ENDPOINT         NODES   AGE\n\
         demo   v1.35.4   Running   True    https://d:8443   0       90s\n"
    );
    assert_eq!(
        table(
            "{}",
            Columns {
                namespace: true,
                wide: true
            }
        ),
        "NAMESPACE   NAME   VERSION   PHASE    READY    ENDPOINT   NODES    AGE   KUBECONFIG   CA-EXPIRES   COST     MESSAGE\n\
         t           demo   <none>    <none>   <none>   <none>     <none>   90s   <none>       <none>       <none>   <none>\n"
    );
    let wide = table(
        RUNNING,
        Columns {
            namespace: false,
            wide: true,
        },
    );
    assert!(
        wide.ends_with("demo-kubeconfig   365d         0.15 EUR   The API answers.\n"),
        "{wide}"
    );
}

#[test]
fn ages_are_as_kubectl_writes_them() {
    for (seconds, text) in [
        (-1, "passed"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (125, "2m5s"),
        (599, "9m59s"),
        (600, "10m"),
        (10_799, "179m"),
        (10_800, "3h"),
        (11_100, "3h5m"),
        (28_800, "8h"),
        (172_799, "47h"),
        (176_400, "2d1h"),
        (691_200, "8d"),
        (63_071_999, "729d"),
        (63_072_000, "2y"),
    ] {
        let from = Timestamp::from_second(now().as_second() - seconds).unwrap();
        assert_eq!(span(from, now()), text, "{seconds}");
    }
}

#[test]
fn ready_comes_first_among_conditions() {
    let condition = |type_: &str| Condition {
        type_: type_.into(),
        status: "True".into(),
        reason: "AsExpected".into(),
        message: String::new(),
        last_transition_time: Time(now()),
        observed_generation: None,
    };
    let table = condition_table(
        &[condition("Accepted"), condition("Ready"), condition("Degraded")],
        now(),
    );
    let names: Vec<_> = table
        .to_text()
        .lines()
        .map(|line| line.split(' ').next().unwrap().to_owned())
        .collect();
    assert_eq!(names, ["CONDITION", "Ready", "Accepted", "Degraded"]);
}
