//! Management calls: creating, describing, resetting and dropping tables, limits, statistics.

use std::sync::Arc;

use engram_core::{ColumnSpec, DType, RateLimits, SelectorKind, Signature, TableOptions};
use engram_rpc::client::ClientOptions;
use engram_rpc::pb;
use engram_rpc::pb::error::Code;
use engram_rpc::pb::manage_request::Call;
use engram_rpc::pb::manage_response::Outcome;
use engram_rpc::wire::{decode_info, decode_options, encode_limits, encode_options};

use crate::support::{Client, STEP_TIMEOUT, connect, engine, expect_error, fill, options, start};

async fn send(client: &mut Client, call: Call) -> pb::ManageResponse {
    let request = pb::ManageRequest { call: Some(call) };
    client.manage(request).await.unwrap().into_inner()
}

async fn call_outcome(client: &mut Client, call: Call) -> Outcome {
    send(client, call).await.outcome.unwrap()
}

const DONE: Outcome = Outcome::Done(pb::Empty {});
/// Requests all tables in one message, as a client does that does not read pages.
const ALL: pb::ListTables = pb::ListTables {
    paged: false,
    after: None,
};

fn table_names(names: &[&str]) -> Outcome {
    Outcome::Tables(pb::TableNames {
        names: names.iter().map(ToString::to_string).collect(),
        more: false,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_are_created_and_dropped() {
    let engine = engine(vec![options("b")]);
    let server = start(&engine);
    let mut client = connect(&server).await;
    let options_a = TableOptions {
        max_bytes: Some(1 << 30),
        max_times_sampled: 3,
        ttl: Some(60_000_000_000),
        sampler: SelectorKind::Prioritized { exponent: 0.6 },
        ..options("a")
    };
    let create = Call::Create(encode_options(&options_a));
    assert_eq!(call_outcome(&mut client, create.clone()).await, DONE);
    assert_eq!(
        expect_error(send(&mut client, create).await).text,
        "table `a` already exists; choose another name, or drop that table first"
    );
    let tables = call_outcome(&mut client, Call::Tables(ALL)).await;
    assert_eq!(tables, table_names(&["a", "b"]));
    let Outcome::Options(described) = call_outcome(&mut client, Call::Describe("a".into())).await
    else {
        panic!("no options");
    };
    assert_eq!(described, encode_options(&options_a));
    assert_eq!(decode_options(described, 5).unwrap().seed, 5);
    assert_eq!(
        call_outcome(&mut client, Call::Drop("b".into())).await,
        DONE
    );
    let tables = call_outcome(&mut client, Call::Tables(ALL)).await;
    assert_eq!(tables, table_names(&["a"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_created_by_clients_have_different_seeds() {
    let engine = engine(vec![]);
    let server = start(&engine);
    let mut client = connect(&server).await;
    for name in ["a", "b"] {
        let create = Call::Create(encode_options(&options(name)));
        assert_eq!(call_outcome(&mut client, create).await, DONE);
    }
    let given = pb::TableOptions {
        seed: Some(11),
        ..encode_options(&options("c"))
    };
    assert_eq!(call_outcome(&mut client, Call::Create(given)).await, DONE);
    let seed = |name| engine.table(name).unwrap().options().seed;
    assert_ne!(seed("a"), seed("b"));
    assert_eq!(seed("c"), 11);
}

#[tokio::test(flavor = "multi_thread")]
async fn statistics_and_limits_are_sent() {
    let engine = engine(vec![options("t")]);
    let server = start(&engine);
    let mut client = connect(&server).await;
    fill(&engine.table("t").unwrap(), 0, 10, 4);
    let query = |n| pb::LimiterQuery {
        table: "t".into(),
        n,
    };
    let allowed = Outcome::CanProceed(true);
    assert_eq!(
        call_outcome(&mut client, Call::CanSample(query(1))).await,
        allowed
    );
    assert_eq!(
        call_outcome(&mut client, Call::CanInsert(query(1))).await,
        allowed
    );
    let limits = RateLimits {
        kind: "MinSize(20)".into(),
        min_size: 20,
        ..options("t").limits
    };
    let set = pb::SetLimits {
        table: "t".into(),
        limits: Some(encode_limits(&limits)),
    };
    assert_eq!(call_outcome(&mut client, Call::SetLimits(set)).await, DONE);
    let blocked = Outcome::CanProceed(false);
    assert_eq!(
        call_outcome(&mut client, Call::CanSample(query(1))).await,
        blocked
    );
    let Outcome::Info(infos) = call_outcome(&mut client, Call::Info(ALL)).await else {
        panic!("no statistics");
    };
    let info = decode_info(infos.tables[0].clone()).unwrap();
    assert_eq!(
        (
            &*info.options.name,
            info.stats.size,
            info.stats.limiter.inserts
        ),
        ("t", 10, 10)
    );
    assert_eq!(info.stats.limiter.limits, limits);
    let local_info = engine.table("t").unwrap().info();
    assert_eq!(info.sampling_blocked, local_info.sampling_blocked);
    assert!(info.sampling_blocked.is_some());
    let Outcome::Options(described) = call_outcome(&mut client, Call::Describe("t".into())).await
    else {
        panic!("no options");
    };
    assert_eq!(described.limits.unwrap().min_size, 20);
    assert_eq!(
        call_outcome(&mut client, Call::Reset("t".into())).await,
        DONE
    );
    assert_eq!(engine.table("t").unwrap().info().stats.size, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn infos_include_tables_whose_signatures_a_server_would_reject() {
    let signed = |name: &str, columns: usize, axes: usize| {
        let column = ColumnSpec {
            name: "x".into(),
            dtype: DType::Uint8,
            shape: vec![None; axes].into(),
        };
        let signature = Signature {
            columns: vec![column; columns].into(),
            structure: format!("{{\"l\":[0{}]}}", ",0".repeat(columns - 1)).into(),
        };
        TableOptions {
            signature: Some(Arc::new(signature)),
            ..options(name)
        }
    };
    let tables = [signed("axes", 1, 65), signed("columns", 16_385, 0)];
    let engine = engine(tables.to_vec());
    let server = start(&engine);
    let mut client = connect(&server).await;
    let Outcome::Info(infos) = call_outcome(&mut client, Call::Info(ALL)).await else {
        panic!("no infos");
    };
    for (table, info) in tables.iter().zip(infos.tables) {
        assert_eq!(
            decode_info(info).unwrap().options.signature,
            table.signature
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_calls_return_errors_that_name_the_cause() {
    let engine = engine(vec![options("a"), options("b")]);
    let server = start(&engine);
    let mut client = connect(&server).await;
    let query = pb::LimiterQuery {
        table: "c".into(),
        n: 1,
    };
    let set = pb::SetLimits {
        table: "c".into(),
        limits: Some(encode_limits(&options("c").limits)),
    };
    for call in [
        Call::Describe("c".into()),
        Call::Drop("c".into()),
        Call::SetLimits(set),
        Call::Reset("c".into()),
        Call::CanSample(query.clone()),
        Call::CanInsert(query),
    ] {
        let error = expect_error(send(&mut client, call).await);
        assert_eq!(error.text, "no table `c`; known tables: `a`, `b`");
        assert_eq!(error.code(), Code::UnknownTable);
        assert_eq!(
            (&*error.table, &*error.known_tables),
            ("c", &["a".into(), "b".into()][..])
        );
    }
    let empty = pb::ManageRequest { call: None };
    let error = expect_error(client.manage(empty).await.unwrap().into_inner());
    assert_eq!(
        error.text,
        "empty request, or a call that this server does not know; `call` must be set"
    );
    let error = expect_error(send(&mut client, Call::Create(pb::TableOptions::default())).await);
    assert_eq!(error.text, "the required field `sampler` is missing");
    let mut unknown = encode_options(&options("unknown"));
    unknown.sampler = Some(pb::Selector {
        kind: 6,
        exponent: 0.0,
    });
    let error = expect_error(send(&mut client, Call::Create(unknown)).await);
    assert_eq!(error.text, "unknown selector kind 6; expected 0 to 5");
    let column = |axes| pb::ColumnSpec {
        name: "x".into(),
        dtype: "uint8".into(),
        shape: vec![1; axes],
    };
    for (columns, text) in [
        (
            vec![column(65)],
            "column `x` of a signature has 65 axes; at most 64 are allowed",
        ),
        (
            vec![column(0); 16_385],
            "a signature has 16385 columns; a server accepts at most 16384",
        ),
        (
            vec![column(0); 2],
            "the structure of the signature of table `signed` describes 1 column, expected 2; it needs one leaf \
             per column",
        ),
    ] {
        let signed = pb::TableOptions {
            signature: Some(pb::Signature {
                columns,
                structure: r#"{"d":[["x",0]]}"#.into(),
            }),
            ..encode_options(&options("signed"))
        };
        let error = expect_error(send(&mut client, Call::Create(signed)).await);
        assert_eq!(error.text, text);
    }
}

#[test]
fn selectors_have_the_numbers_of_the_protocol() {
    let numbers = [0, 1, 2, 5, 3, 4];
    assert_eq!(numbers.len(), SelectorKind::ALL.len());
    for (number, &sampler) in numbers.into_iter().zip(SelectorKind::ALL) {
        let sent = encode_options(&TableOptions {
            sampler,
            ..options("t")
        });
        assert_eq!(sent.sampler.unwrap().kind, number);
        assert_eq!(decode_options(sent, 1).unwrap().sampler, sampler);
    }
}

/// Reads all pages of the tables' infos; returns their names and the number of pages.
async fn read_infos(client: &mut Client) -> (Vec<String>, usize) {
    let (mut names, mut pages) = (Vec::new(), 0);
    let mut after = None;
    loop {
        let request = pb::ListTables { paged: true, after };
        let Outcome::Info(page) = call_outcome(client, Call::Info(request)).await else {
            panic!("no infos");
        };
        pages += 1;
        let tables = page.tables.into_iter();
        names.extend(tables.map(|table| table.options.unwrap().name));
        if !page.more {
            return (names, pages);
        }
        after = names.last().cloned();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_are_listed_in_pages() {
    let name = |index: usize| format!("{index:04}{}", "n".repeat(1_020));
    let table = |index| TableOptions {
        note: (index % 10 == 0).then(|| "x".repeat(64 << 10).into()),
        ..options(&name(index))
    };
    let all: Vec<String> = (0..1_070).map(name).collect();
    let engine = engine((0..1_070).map(table).collect());
    let server = start(&engine);
    let mut client = connect(&server).await;
    let (names, pages) = read_infos(&mut client).await;
    assert_eq!(names, all);
    assert!((7..12).contains(&pages), "{pages} pages");
    let request = pb::ListTables {
        paged: true,
        after: None,
    };
    let Outcome::Tables(first) = call_outcome(&mut client, Call::Tables(request)).await else {
        panic!("no names");
    };
    assert!(first.more && first.names == all[..first.names.len()]);
    // A client that does not read pages gets everything in one message, or an error if one message cannot hold it.
    assert_eq!(
        call_outcome(&mut client, Call::Tables(ALL)).await,
        table_names(&all.iter().map(String::as_str).collect::<Vec<_>>())
    );
    let error = expect_error(send(&mut client, Call::Info(ALL)).await);
    assert_eq!(error.code(), Code::InvalidArgument);
    let (start, end) = error.text.split_once(" has ").unwrap();
    assert_eq!(start, "the list of 1070 tables");
    assert_eq!(
        end.split_once(" bytes").unwrap().1,
        ", but a message has at most 4194304, and this version of the client reads only one; install the version of \
         Engram that the server has"
    );
    // Engram's client reads all pages.
    let options = ClientOptions {
        address: server.address().to_string(),
        token: None,
        tls: None,
        reconnect_timeout: STEP_TIMEOUT,
    };
    let client = engram_rpc::client::Client::new(options).unwrap();
    assert_eq!(client.tables().await.unwrap(), all);
    let infos = client.infos().await.unwrap();
    let names = infos.into_iter().map(|info| info.options.name.clone());
    assert_eq!(names.collect::<Vec<_>>(), all);
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_of_a_table_are_bounded() {
    let engine = engine(vec![options("t")]);
    let server = start(&engine);
    let mut client = connect(&server).await;
    let limits = RateLimits {
        kind: "k".repeat(3 << 20),
        ..options("t").limits
    };
    let text =
        "the `kind` of the rate limiter of table `t` must have at most 1024 bytes; got 3145728";
    let set = pb::SetLimits {
        table: "t".into(),
        limits: Some(encode_limits(&limits)),
    };
    let error = expect_error(send(&mut client, Call::SetLimits(set)).await);
    assert_eq!((error.code(), &*error.text), (Code::InvalidArgument, text));
    let with_kind = TableOptions {
        limits,
        ..options("u")
    };
    let create = Call::Create(encode_options(&with_kind));
    let error = expect_error(send(&mut client, create).await);
    assert_eq!(error.text, text.replace("`t`", "`u`"));
    let column = pb::ColumnSpec {
        name: "x".repeat(2_000),
        dtype: "uint8".into(),
        shape: vec![],
    };
    let signed = pb::TableOptions {
        signature: Some(pb::Signature {
            columns: vec![column; 1_500],
            structure: "{}".into(),
        }),
        ..encode_options(&options("u"))
    };
    let error = expect_error(send(&mut client, Call::Create(signed)).await);
    assert_eq!(
        error.text,
        "the signature of table `u` must have at most 2097152 bytes of names, shapes and nesting; got 3024002"
    );
    let long = engine
        .create_table(options(&"n".repeat(1_025)))
        .unwrap_err();
    assert_eq!(
        long.to_string(),
        "the name of a table must have at most 1024 bytes; got 1025"
    );
    assert_eq!(read_infos(&mut client).await, (vec!["t".into()], 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_to_a_closed_store_fail() {
    let engine = engine(vec![options("a")]);
    let server = start(&engine);
    let mut client = connect(&server).await;
    engine.close().unwrap();
    let error = expect_error(send(&mut client, Call::Tables(ALL)).await);
    assert_eq!(error.text, "the store is closed");
    assert_eq!(error.code(), Code::Closed);
}
