//! Arbitrary table options do not crash a server.

use std::sync::OnceLock;

use engram_core::SelectorKind;
use engram_rpc::pb;
use engram_rpc::pb::manage_request::Call;
use engram_rpc::pb::manage_response::Outcome;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use tokio::runtime::Runtime;

use crate::insert::{first_message, items_message, row_items};
use crate::sample::batch_request;
use crate::support::{Client, connect, engine, open_insert_stream, open_sample_stream, start};

/// Numbers that are mostly small, and otherwise very large.
fn any_count() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0..6_u64, 1 => Just(u64::MAX), 1 => Just(u64::from(u32::MAX)), 1 => any::<u64>()]
}

fn any_f64() -> impl Strategy<Value = f64> {
    prop_oneof![
        3 => -2.0..4.0,
        1 => Just(f64::MAX),
        1 => Just(f64::MIN),
        1 => Just(f64::NAN),
        1 => Just(f64::INFINITY),
    ]
}

prop_compose! {
    fn selector()(kind in 0..=i32::try_from(SelectorKind::ALL.len()).unwrap(), exponent in any_f64()) -> pb::Selector {
        pb::Selector { kind, exponent }
    }
}

prop_compose! {
    fn limits()(
        kind in "[A-Z][a-z]{0,3}",
        samples_per_insert in any_f64(),
        min_size in any_count(),
        min_diff in any_f64(),
        max_diff in any_f64(),
    ) -> pb::RateLimits {
        pb::RateLimits { kind, samples_per_insert, min_size, min_diff, max_diff }
    }
}

fn permissive_limits() -> pb::RateLimits {
    pb::RateLimits {
        kind: "MinSize".into(),
        samples_per_insert: 1.0,
        min_size: 1,
        min_diff: f64::MIN,
        max_diff: f64::MAX,
    }
}

prop_compose! {
    fn signature()(
        name in "[xy]",
        dtype in prop_oneof![Just("uint32"), Just("unknown")],
        shape in vec(-2..3_i64, 0..3),
        structure in prop_oneof![4 => Just("0"), 1 => Just("{}")],
    ) -> pb::Signature {
        let column = pb::ColumnSpec { name, dtype: dtype.into(), shape };
        pb::Signature { columns: vec![column], structure: structure.into() }
    }
}

prop_compose! {
    fn options()(
        (max_size, max_times_sampled) in (any_count(), prop_oneof![0..3_u32, Just(u32::MAX)]),
        max_bytes in option::weighted(0.2, prop_oneof![any_count(), 100..1_000_u64]),
        ttl in option::weighted(0.2, any_count()),
        sampler in option::weighted(0.95, selector()),
        remover in option::weighted(0.95, selector()),
        limits in prop_oneof![Just(Some(permissive_limits())), option::weighted(0.95, limits().prop_map(Some)).prop_map(Option::flatten)],
        signature in option::weighted(0.1, signature()),
        seed in option::of(any::<u64>()),
        note in option::weighted(0.2, "[a-z]{0,9}"),
    ) -> pb::TableOptions {
        pb::TableOptions {
            name: "t".into(),
            max_size,
            max_bytes,
            max_times_sampled,
            ttl,
            sampler,
            remover,
            limits,
            signature,
            seed,
            note,
        }
    }
}

async fn send(client: &mut Client, call: Call) -> Outcome {
    let request = pb::ManageRequest { call: Some(call) };
    let reply = client.manage(request).await.unwrap().into_inner();
    reply.outcome.unwrap()
}

fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| Runtime::new().unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_table_is_rejected_or_works(options in options(), new_limits in limits(), n in any_count()) {
        runtime().block_on(async {
            let engine = engine(vec![]);
            let server = start(&engine);
            let mut client = connect(&server).await;
            let created = send(&mut client, Call::Create(options)).await;
            let set = pb::SetLimits { table: "t".into(), limits: Some(new_limits) };
            if created == Outcome::Done(pb::Empty {}) {
                let writer = open_insert_stream(&mut client).await;
                writer.send(first_message(1)).await;
                writer.send(items_message([row_items("t", 1, 10, 1)])).await;
                let mut reader = open_sample_stream(&mut client).await;
                let short_request = |id, n| pb::BatchRequest { timeout_s: Some(0.01), at_least: 1, ..batch_request(id, n) };
                reader.request_batch(short_request(1, 3)).await;
                reader.receive().await;
                send(&mut client, Call::SetLimits(set)).await;
                reader.request_batch(short_request(2, 40)).await;
                reader.receive().await;
                let query = pb::LimiterQuery { table: "t".into(), n };
                send(&mut client, Call::CanSample(query.clone())).await;
                send(&mut client, Call::CanInsert(query)).await;
                send(&mut client, Call::Reset("t".into())).await;
                send(&mut client, Call::Drop("t".into())).await;
            }
            let tables = send(&mut client, Call::Info(pb::ListTables::default())).await;
            assert_eq!(tables, Outcome::Info(pb::TableInfos::default()));
        });
    }
}
