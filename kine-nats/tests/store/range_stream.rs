//! Lists in parts: together they equal a Range, and no part is read before the client has room for
//! it.

use crate::fuzz::seeded;
use crate::harness::{Client, Kine, Nats, WAIT, decode, eventually, led};
use pb::range_request::{SortOrder, SortTarget};
use rand::RngExt;
use rand::rngs::StdRng;
use tonic::transport::Endpoint;
use tonic::{Code, Status, Streaming};
use yoke_kine_nats::proto::etcdserverpb as pb;

/// Keys of random stores, and as many that were never written.
const KEYS: usize = 401;
/// Bytes of the values of large lists.
const VALUE: usize = 100_000;

/// A list that is being read.
struct Listing {
    answers: Streaming<pb::RangeStreamResponse>,
    list: pb::RangeResponse,
    parts: usize,
    keys: usize,
}

impl Listing {
    async fn open(client: &mut Client, request: pb::RangeRequest) -> Result<Self, Status> {
        Self::ask(client, tonic::Request::new(request)).await
    }

    /// Opens it as a client that requires a leader.
    async fn open_led(client: &mut Client, request: pb::RangeRequest) -> Result<Self, Status> {
        Self::ask(client, led(request)).await
    }

    async fn ask(client: &mut Client, request: tonic::Request<pb::RangeRequest>) -> Result<Self, Status> {
        Ok(Self {
            answers: client.kv.range_stream(request).await?.into_inner(),
            list: pb::RangeResponse::default(),
            parts: 0,
            keys: 0,
        })
    }

    /// Reads one more part. Returns whether there was one.
    async fn take(&mut self) -> Result<bool, Status> {
        let part = tokio::time::timeout(WAIT, self.answers.message()).await;
        let Some(part) = part.expect("a part in time")? else {
            assert!(self.list.header.is_some(), "a whole list has a header");
            return Ok(false);
        };
        let part = part.range_response.unwrap();
        // kube-apiserver treats a part without keys as an error, unless it is the last one.
        assert!(self.list.header.is_none(), "the header stands in the last part");
        assert!(!part.kvs.is_empty() || part.header.is_some());
        assert!(part.header.is_some() || (!part.more && part.count == 0));
        self.parts += 1;
        self.keys += part.kvs.len();
        self.list.kvs.extend(part.kvs);
        self.list.header = part.header;
        (self.list.more, self.list.count) = (part.more, part.count);
        Ok(true)
    }

    async fn finish(mut self) -> Result<(pb::RangeResponse, usize), Status> {
        while self.take().await? {}
        Ok((self.list, self.parts))
    }
}

/// All parts of a RangeStream together.
pub(crate) async fn list(client: &mut Client, request: pb::RangeRequest) -> Result<pb::RangeResponse, Status> {
    Ok(Listing::open(client, request).await?.finish().await?.0)
}

fn all() -> pb::RangeRequest {
    pb::RangeRequest {
        key: "/".into(),
        range_end: "0".into(),
        ..Default::default()
    }
}

/// A client with little room for unread data.
fn narrow(kine: &Kine) -> Client {
    let endpoint = Endpoint::from_shared(kine.url()).unwrap();
    Client::new(endpoint.initial_stream_window_size(65_535).connect_lazy())
}

/// Writes a list of this many large values.
async fn fill(client: &Client, values: usize) {
    let value = vec![b'v'; VALUE];
    for first in (0..values).step_by(16) {
        let puts = (first..values.min(first + 16)).map(|number| {
            let (mut client, value) = (client.clone(), &value);
            async move { client.put(&format!("/large/{number:05}"), value).await.unwrap() }
        });
        futures::future::join_all(puts).await;
    }
}

fn name(number: usize) -> String {
    format!("/k/{number:04}")
}

/// A transaction that writes many keys and deletes some.
fn change(random: &mut StdRng) -> pb::TxnRequest {
    use pb::request_op::Request;
    let first = random.random_range(0..KEYS);
    let mut operation = |number: usize| {
        let key = name((first + number * 7) % KEYS).into();
        let length = [0, 10, 3000, 40_000][random.random_range(0..4usize)];
        let value = vec![b'v'; length].into();
        let put = pb::PutRequest {
            key,
            value,
            ..Default::default()
        };
        let delete = pb::DeleteRangeRequest {
            key: put.key.clone(),
            ..Default::default()
        };
        let request = if random.random_ratio(1, 3) {
            Request::RequestDeleteRange(delete)
        } else {
            Request::RequestPut(put)
        };
        pb::RequestOp { request: Some(request) }
    };
    pb::TxnRequest {
        success: (0..80).map(&mut operation).collect(),
        ..Default::default()
    }
}

fn question(random: &mut StdRng, compacted: i64, revision: i64) -> pb::RangeRequest {
    let mut bound = || match random.random_range(0..4) {
        0 => "/".to_owned(),
        1 => "\0".to_owned(),
        _ => name(random.random_range(0..2 * KEYS)),
    };
    let (key, end) = (bound(), bound());
    let (order, target) = [
        (SortOrder::None, SortTarget::Key),
        (SortOrder::Ascend, SortTarget::Key),
        (SortOrder::None, SortTarget::Value),
    ][random.random_range(0..3usize)];
    pb::RangeRequest {
        key: key.into(),
        range_end: if random.random_ratio(1, 8) {
            bytes::Bytes::new()
        } else {
            end.into()
        },
        limit: [0, 0, -1, 1, 37, 200, KEYS as i64, i64::MAX][random.random_range(0..8usize)],
        revision: match random.random_range(0..4) {
            0 => 0,
            _ => random.random_range(compacted - 1..=revision + 1),
        },
        sort_order: order as i32,
        sort_target: target as i32,
        serializable: random.random(),
        keys_only: random.random_ratio(1, 4),
        count_only: random.random_ratio(1, 8),
        ..Default::default()
    }
}

#[tokio::test]
async fn a_streamed_list_equals_the_range() {
    let mut random = seeded();
    let nats = Nats::start().await;
    let kine = Kine::start(&nats, "parts", &[]).await;
    let mut client = kine.client().await;
    let (mut most, mut refused, mut compacted) = (0, 0, 1);
    for _ in 0..4 {
        for _ in 0..6 {
            client.kv.txn(change(&mut random)).await.unwrap();
        }
        let revision = client.revision().await;
        for _ in 0..50 {
            let asked = question(&mut random, compacted, revision);
            let whole = client.kv.range(asked.clone()).await;
            let parts = match Listing::open(&mut client, asked.clone()).await {
                Ok(listing) => listing.finish().await,
                Err(error) => Err(error),
            };
            match (whole, parts) {
                (Ok(whole), Ok((list, count))) => {
                    assert!(whole.into_inner() == list, "{asked:?}");
                    most = most.max(count);
                }
                (Err(whole), Err(error)) => {
                    let told = |error: &Status| (error.code(), error.message().to_owned());
                    assert_eq!(told(&whole), told(&error), "{asked:?}");
                    refused += 1;
                }
                (whole, parts) => panic!("{asked:?}: {:?}, {:?}", whole.err(), parts.err()),
            }
        }
        compacted = random.random_range(compacted + 1..=revision);
        client.compact(compacted).await.unwrap();
    }
    assert!(most > 4 && refused > 0, "{most} parts, {refused} refused");
}

#[tokio::test]
async fn an_invalid_stream_is_rejected_like_in_etcd() {
    let nats = Nats::start().await;
    let kine = Kine::start(&nats, "norange", &[]).await;
    let mut client = kine.client().await;
    let head = client.put("/a", b"1").await.unwrap();
    client.put("/a", b"2").await.unwrap();
    client.compact(head + 1).await.unwrap();
    type Change = fn(&mut pb::RangeRequest);
    let table: [(Change, Code, &str); 9] = [
        (
            |asked| asked.key.clear(),
            Code::InvalidArgument,
            "etcdserver: key is not provided",
        ),
        (
            |asked| asked.sort_order = 3,
            Code::InvalidArgument,
            "etcdserver: invalid sort option",
        ),
        (
            |asked| asked.sort_target = -1,
            Code::InvalidArgument,
            "etcdserver: invalid sort option",
        ),
        (
            |asked| asked.range_end = vec![b'x'; 7 << 18].into(),
            Code::InvalidArgument,
            "etcdserver: request is too large",
        ),
        (
            |asked| asked.sort_order = SortOrder::Descend as i32,
            Code::Unimplemented,
            "RangeStream does not support custom sort orders",
        ),
        (
            |asked| (asked.sort_order, asked.sort_target) = (SortOrder::Ascend as i32, SortTarget::Mod as i32),
            Code::Unimplemented,
            "RangeStream does not support custom sort orders",
        ),
        (
            |asked| asked.max_create_revision = 7,
            Code::Unimplemented,
            "RangeStream does not support revision filters",
        ),
        (
            |asked| asked.revision = 9,
            Code::OutOfRange,
            "etcdserver: mvcc: required revision is a future revision",
        ),
        (
            |asked| asked.revision = 2,
            Code::OutOfRange,
            "etcdserver: mvcc: required revision has been compacted",
        ),
    ];
    for (change, code, text) in table {
        let mut asked = all();
        change(&mut asked);
        let error = list(&mut client, asked).await.unwrap_err();
        assert_eq!((error.code(), error.message()), (code, text));
    }
    assert_eq!(list(&mut client, all()).await.unwrap().count, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_clients_use_little_memory() {
    const CLIENTS: u64 = 12;
    const VALUES: usize = 300;
    let nats = Nats::start().await;
    let kine = Kine::start(&nats, "slow", &[]).await;
    fill(&kine.client().await, VALUES).await;
    let before = kine.peak_memory();
    let mut lists = Vec::new();
    for _ in 0..CLIENTS {
        lists.push(Listing::open(&mut narrow(&kine), all()).await.unwrap());
    }
    // All at the same speed: no list is complete before the others.
    for part in 0.. {
        let taken = futures::future::join_all(lists.iter_mut().map(Listing::take)).await;
        let taken: Vec<bool> = taken.into_iter().map(Result::unwrap).collect();
        assert!(taken.iter().all(|one| *one == taken[0]), "part {part}: {taken:?}");
        if !taken[0] {
            break;
        }
        for one in &mut lists {
            let first = one.list.kvs.first().map(decode);
            assert!(first.is_none_or(|kv| kv.value.len() == VALUE));
            one.list.kvs.clear();
        }
    }
    for one in &lists {
        assert_eq!((one.list.count, one.keys), (VALUES as i64, VALUES));
    }
    let grown = kine.peak_memory().saturating_sub(before);
    println!("{CLIENTS} lists of {} MB: {grown} bytes", VALUES * VALUE / 1_000_000);
    assert!(grown < CLIENTS * (2 << 20), "{grown} bytes more, of {before}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_compaction_ends_an_unread_list() {
    const VALUES: usize = 100;
    let nats = Nats::start().await;
    let kine = Kine::start(&nats, "cut", &[]).await;
    let mut client = kine.client().await;
    fill(&client, VALUES).await;
    let revision = client.revision().await;
    let mut whole = Listing::open(&mut narrow(&kine), all()).await.unwrap();
    let mut cut = Listing::open(&mut narrow(&kine), all()).await.unwrap();
    assert!(whole.take().await.unwrap() && cut.take().await.unwrap());

    // Keys that are written and deleted meanwhile are not in the list, and a compaction up to its
    // revision does not end it.
    client.put("/large/00099", b"new").await.unwrap();
    client.delete("/large/00098").await;
    let head = client.put("/new", b"new").await.unwrap();
    client.compact(revision).await.unwrap();
    let (list, parts) = whole.finish().await.unwrap();
    assert_eq!((list.header.unwrap().revision, list.count), (revision, VALUES as i64));
    assert!(list.kvs.iter().all(|kv| decode(kv).value.len() == VALUE));
    assert!(parts > VALUES / 4, "{parts}");

    client.compact(head).await.unwrap();
    let error = loop {
        match cut.take().await {
            Ok(more) => assert!(more, "the list ended"),
            Err(error) => break error,
        }
    };
    assert_eq!(
        (error.code(), error.message()),
        (
            Code::OutOfRange,
            "etcdserver: mvcc: required revision has been compacted"
        )
    );
    // The parts in transit; the rest was not read.
    let on_the_way = cut.list.kvs.len();
    assert!(on_the_way < VALUES / 10, "{on_the_way}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_lists_acknowledged_keys_while_there_is_a_leader() {
    let mut nats = Nats::start().await;
    let mut writer = Kine::start(&nats, "listed", &["--follow"]).await;
    let mut follower = Kine::start(&nats, "listed", &["--follow"]).await;
    let (mut one, mut other) = (writer.client().await, follower.client().await);
    for number in 0..100 {
        let written = one.put("/a", format!("{number}").as_bytes()).await.unwrap();
        let list = list(&mut other, all()).await.unwrap();
        assert_eq!(list.header.unwrap().revision, written);
        assert_eq!(decode(&list.kvs[0]).mod_revision, written);
    }
    fill(&one, 60).await;
    let mut whole = list(&mut one, all()).await.unwrap();
    let mut listed = list(&mut other, all()).await.unwrap();
    let member = |list: &mut pb::RangeResponse| list.header.take().unwrap().member_id;
    assert_ne!(member(&mut whole), member(&mut listed));
    assert!(whole == listed);

    let mut led = Listing::open_led(&mut narrow(&follower), all()).await.unwrap();
    let mut alone = Listing::open(&mut narrow(&follower), all()).await.unwrap();
    let mut stopped = Listing::open(&mut narrow(&follower), all()).await.unwrap();
    for listing in [&mut led, &mut alone, &mut stopped] {
        assert!(listing.take().await.unwrap());
    }
    writer.kill();
    nats.kill();
    eventually("the follower to have no leader", || async {
        (follower.metric("etcd_server_has_leader").await == 0.0).then_some(())
    })
    .await;
    let error = led.finish().await.err().unwrap();
    assert_eq!(
        (error.code(), error.message()),
        (Code::Unavailable, "etcdserver: no leader")
    );
    assert_eq!(alone.finish().await.unwrap().0.count, 61);
    let old = pb::RangeRequest {
        serializable: true,
        ..all()
    };
    assert_eq!(list(&mut other, old.clone()).await.unwrap().count, 61);
    let error = Listing::open_led(&mut other, old).await.err().unwrap();
    assert_eq!(error.message(), "etcdserver: no leader");

    // A client that reads nothing does not block the exit, and does not get the impression that the
    // list is complete.
    nats.restart().await;
    eventually("the follower to become the writer", || async {
        (follower.metric("etcd_server_is_leader").await == 1.0).then_some(())
    })
    .await;
    println!(
        "with a list that nobody reads it ends in {:?}",
        follower.terminate().await
    );
    assert!(stopped.finish().await.is_err());
}
