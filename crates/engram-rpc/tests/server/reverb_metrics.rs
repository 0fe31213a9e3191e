//! Metrics of dm-reverb's calls.

use engram_reverb::pb;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

use crate::metrics::{get, start_with_metrics};
use crate::reverb::{
    Client, chunk, item, open_insert_stream, open_sample_stream, request, sample_request,
};
use crate::support::{engine, one_item_queue, options, wait_until};

const CALL_NAMES: [&str; 7] = [
    "insert_stream",
    "sample_stream",
    "mutate_priorities",
    "reset",
    "checkpoint",
    "server_info",
    "initialize_connection",
];

/// Returns the value of one metric.
fn parse_metric(text: &str, name: &str) -> u64 {
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value
        .unwrap_or_else(|| panic!("no {name} in {text}"))
        .parse()
        .unwrap()
}

/// Returns the numbers of begun and of open calls, by call.
fn parse_call_counts(text: &str) -> [(u64, u64); 7] {
    CALL_NAMES.map(|call| {
        let labels = format!("{{protocol=\"reverb\",call=\"{call}\"}}");
        let begun = parse_metric(text, &format!("engram_server_calls_total{labels}"));
        (
            begun,
            parse_metric(text, &format!("engram_server_open_calls{labels}")),
        )
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_and_streams_are_counted_while_they_are_open() {
    let engine = engine(vec![options("table"), one_item_queue("one_item_queue")]);
    let (server, address) = start_with_metrics(&engine);
    let scrape = || get(address, "/metrics");
    assert_eq!(parse_call_counts(&scrape()), [(0, 0); 7]);

    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{}", server.address()));
    let mut client = Client::new(endpoint.unwrap().connect().await.unwrap());
    let mut writer = open_insert_stream(&mut client).await;
    let items = (1..=2).map(|key| item(key, "one_item_queue", 9, 0, 1));
    let items = items.chain([item(3, "table", 9, 0, 1)]).collect();
    writer
        .send(request(vec![chunk(9, 0, 1)], items, &[9]))
        .await;
    let mut keys = Vec::new();
    while keys.len() < 2 {
        keys.extend(writer.receive().await.keys);
    }
    let mut reader = open_sample_stream(&mut client).await;
    reader.send(sample_request("table", 5, 0)).await;
    assert_eq!(reader.receive().await.entries.len(), 5);
    client.server_info(pb::ServerInfoRequest {}).await.unwrap();
    for table in ["table", "other"] {
        let request = pb::MutatePrioritiesRequest {
            table: table.into(),
            ..pb::MutatePrioritiesRequest::default()
        };
        let changed = client.mutate_priorities(request).await;
        assert_eq!(changed.is_ok(), table == "table");
    }
    let checkpoint = client.checkpoint(pb::CheckpointRequest {}).await;
    assert_eq!(checkpoint.unwrap_err().code(), Code::InvalidArgument);
    let (requests, receiver) = mpsc::channel(1);
    let call = client.initialize_connection(ReceiverStream::new(receiver));
    let responses = call.await.unwrap();

    let text = scrape();
    assert_eq!(
        parse_call_counts(&text),
        [(1, 1), (1, 1), (2, 0), (0, 0), (1, 0), (1, 0), (1, 1)]
    );
    for (name, expected) in [
        ("engram_server_connections_total", 1),
        ("engram_server_open_connections", 1),
        (
            "engram_server_calls_total{protocol=\"engram\",call=\"insert\"}",
            0,
        ),
        ("engram_table_inserts_total{table=\"table\"}", 1),
        ("engram_table_samples_total{table=\"table\"}", 5),
        ("engram_table_waiting_inserts{table=\"one_item_queue\"}", 1),
    ] {
        assert_eq!(parse_metric(&text, name), expected, "{name}");
    }

    // The writer closes its stream; the client drops the two others.
    writer.requests = None;
    assert_eq!(writer.end_status().await.code(), Code::Ok);
    drop(reader);
    drop((requests, responses));
    wait_until("all are closed", || {
        parse_call_counts(&scrape())
            .iter()
            .all(|(_, open)| *open == 0)
    })
    .await;
    let reset = pb::ResetRequest {
        table: "table".into(),
    };
    client.reset(reset).await.unwrap();
    assert_eq!(
        parse_call_counts(&scrape()).map(|(begun, _)| begun),
        [1, 1, 2, 1, 1, 1, 1]
    );
}
