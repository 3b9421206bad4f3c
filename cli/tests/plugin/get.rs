//! `get`.

use serde_json::{Value, json};
use tokio::net::TcpListener;
use yoke_test_support::free_port;

use crate::fixtures::{DEMO, cluster, ready};
use crate::host::Host;

#[tokio::test(flavor = "multi_thread")]
async fn get_shows_every_format() {
    let host = Host::start().await;
    let said = host.run("get").await;
    assert_eq!(
        (said.code, said.out.as_str(), said.err.as_str()),
        (0, "", "no clusters found in namespace t\n")
    );
    host.set(DEMO, cluster("demo", &[ready()]));
    host.set("/apis/yoke.drzzl.io/v1alpha1/namespaces/u/clusters/far", {
        let mut far = cluster("far", &[]);
        far["metadata"]["namespace"] = "u".into();
        far
    });
    let table = host.run("get clusters").await.out;
    assert!(table.starts_with("NAME   VERSION   PHASE     READY   ENDPOINT                   NODES   AGE\ndemo   v1.35.4   Running   True    https://demo-x.yoke.test   2 "), "{table}");
    assert_eq!(
        host.run("get cluster demo -o name").await.out,
        "cluster.yoke.drzzl.io/demo\n"
    );
    assert_eq!(
        host.run("get -A -o name").await.out,
        "cluster.yoke.drzzl.io/demo\ncluster.yoke.drzzl.io/far\n"
    );
    assert!(host.run("get -A").await.out.starts_with("NAMESPACE   NAME"));
    assert!(host.run("get -o wide").await.out.contains("The API answers."));
    let one: Value = serde_json::from_str(&host.run("get clusters demo -o json").await.out).unwrap();
    assert_eq!(one["spec"]["newerField"]["kept"], true);
    let list: Value = serde_saphyr::from_str(&host.run("get -o yaml").await.out).unwrap();
    assert_eq!(
        (
            &list["kind"],
            &list["items"][0]["kind"],
            &list["items"][0]["metadata"]["name"]
        ),
        (&json!("List"), &json!("Cluster"), &json!("demo"))
    );
    assert!(host.run("get tenants").await.err.contains("no tenants found"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_host_is_asked_again() {
    let host = Host::start().await;
    host.set(DEMO, cluster("demo", &[ready()]));
    host.fail("GET", &[429, 503, 504]);
    let said = host.run("get -o name").await;
    assert_eq!(
        (said.code, said.out.as_str()),
        (0, "cluster.yoke.drzzl.io/demo\n"),
        "{said:?}"
    );
    host.fail("GET", &[429, 503]);
    host.begin("get -w").until_out("demo").await;
    host.fail("GET", &[500]);
    let said = host.run("get -o name").await;
    assert_eq!(
        (said.code, said.err.as_str()),
        (1, "error: listing clusters: the host fails\n"),
        "{said:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn get_chooses_by_label_and_leaves_out_the_head() {
    let host = Host::start().await;
    host.set(DEMO, cluster("demo", &[ready()]));
    let mut labelled = cluster("other", &[ready()]);
    labelled["metadata"]["labels"] = json!({"team": "a"});
    host.set(&DEMO.replace("demo", "other"), labelled);
    assert_eq!(
        host.run("get -l team=a -o name").await.out,
        "cluster.yoke.drzzl.io/other\n"
    );
    let table = host.run("get --no-headers --selector team=a").await.out;
    assert!(
        table.starts_with("other   v1.35.4") && table.lines().count() == 1,
        "{table}"
    );
    let status = host.run("status -l team=a").await.out;
    assert!(status.contains("other") && !status.contains("demo"), "{status}");
    let said = host.run("get cluster demo -l team=a").await;
    assert!(said.code == 2 && said.err.contains("cannot be used with"), "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_shows_changes_under_one_head() {
    let host = Host::start().await;
    host.set(DEMO, cluster("demo", &[]));
    let running = host.begin("get -w");
    host.until_watched().await;
    host.set(DEMO, cluster("demo", &[ready()]));
    running.until_out("True").await;
    drop(running);
    let running = host.begin("get -w --no-headers");
    running.until_out("demo").await;
    assert!(!running.said().contains("NAME"), "{}", running.said());
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_of_a_host_that_is_away_is_an_error() {
    let dead = Host::new("http://127.0.0.1:1");
    let said = dead.run("get -w").await;
    assert_eq!((said.code, said.out.as_str()), (1, ""));
    assert!(
        said.err
            .starts_with("error: watching: cannot reach the host's API at http://127.0.0.1:1/: "),
        "{}",
        said.err
    );

    let silent = Host::start().await;
    silent.stall("clusters");
    let said = silent.run("get -w --request-timeout 1s").await;
    assert_eq!(said.code, 1);
    let error = format!(
        "error: watching: no answer from the host's API at {}/ within 1s\n",
        silent.url()
    );
    assert!(said.err.starts_with(&error), "{}", said.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_goes_on_after_the_host_was_away() {
    let listener = std::net::TcpListener::bind(("127.0.0.1", free_port())).unwrap();
    let address = listener.local_addr().unwrap();
    let host = Host::new(&format!("http://{address}"));
    host.set(DEMO, cluster("demo", &[]));
    let first_life = tokio::runtime::Runtime::new().unwrap();
    {
        let _inside = first_life.enter();
        listener.set_nonblocking(true).unwrap();
        host.serve(TcpListener::from_std(listener).unwrap());
    }
    let running = host.begin("get -w --no-headers");
    host.until_watched().await;
    first_life.shutdown_background();
    let trouble = format!("watching: cannot reach the host's API at {}/: ", host.url());
    running.until_err(&trouble).await;
    host.serve(TcpListener::bind(address).await.unwrap());
    host.until_watched().await;
    host.set(DEMO, cluster("demo", &[ready()]));
    running.until_out("True").await;
}
