//! Client program of the interop suite over RocketMQ's Rust client for gRPC: `grpcrust <scenario>
//! --name=value ...`, JSON lines on standard output. Its scenarios and events are those of the Java
//! program, `java/src/grpc`; this client has no push consumer. A scenario that goes on until its end is
//! asked for ends when standard input closes.

use std::collections::HashMap;
use std::error::Error;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{Message, MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};
use serde_json::{json, Value};
use tokio::io::AsyncReadExt;

type Failure = Box<dyn Error + Send + Sync>;

/// Arguments of the form --name=value.
#[derive(Clone)]
struct Args(HashMap<String, String>);

impl Args {
    fn text<'a>(&'a self, name: &str, otherwise: &'a str) -> &'a str {
        self.0.get(name).map_or(otherwise, String::as_str)
    }

    fn number(&self, name: &str, otherwise: u64) -> u64 {
        self.text(name, "").parse().unwrap_or(otherwise)
    }

    /// The value at an index of a list of values that take turns.
    fn in_turn(&self, name: &str, index: usize) -> &str {
        let all: Vec<&str> = self.text(name, "").split(',').collect();
        all[index % all.len()]
    }

    fn client(&self) -> ClientOption {
        let mut option = ClientOption::default();
        option.set_access_url(self.text("endpoints", ""));
        option.set_enable_tls(self.text("tls", "") == "true");
        option.set_timeout(Duration::from_secs(20));
        // The deadline of a receive. A proxy waits until half of the other time-out is left.
        option.set_long_polling_timeout(Duration::from_secs(10 + self.number("await-s", 5)));
        if self.0.contains_key("access-key") {
            option.set_access_key(self.text("access-key", ""));
            option.set_secret_key(self.text("secret-key", ""));
        }
        option
    }

    fn producer(&self) -> ProducerOption {
        let mut option = ProducerOption::default();
        option.set_topics(vec![self.text("topic", "")]);
        option
    }
}

fn print(event: &str, fields: Value) {
    // The name comes first: readers know an event by that.
    let rest = fields.to_string();
    let separator = if rest.len() > 2 { "," } else { "" };
    println!("{{\"event\":\"{event}\"{separator}{}", &rest[1..]);
}

async fn await_end() {
    let mut nothing = Vec::new();
    let _ = tokio::io::stdin().read_to_end(&mut nothing).await;
}

fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_millis() as u64
}

fn index_of(message: &MessageView) -> usize {
    message
        .properties()
        .get("index")
        .and_then(|index| index.parse().ok())
        .unwrap_or(0)
}

/// Everything that a test compares of a received message; the body as size and CRC-32.
fn fields(message: &MessageView) -> Value {
    json!({
        "topic": message.topic(),
        "tags": message.tag(),
        "keys": message.keys().join(" "),
        "properties": message.properties(),
        "size": message.body().len(),
        "crc32": crc32fast::hash(message.body()),
        "msgId": message.message_id(),
        "group": message.message_group(),
        // In seconds, as this client sends it.
        "deliveryTimestamp": message.delivery_timestamp().map(|seconds| seconds * 1000),
        "bornHost": message.born_host(),
        "attempt": message.delivery_attempt(),
        "at": now_ms(),
    })
}

fn message(args: &Args, index: usize, transactional: bool) -> Result<impl Message, Failure> {
    let prefix = args.text("prefix", "m");
    let size = args.number("size", 64) as usize;
    // The pattern every client program of the suite sends.
    let body = (0..size)
        .map(|j| (index * 31 + j * 7 + j / 256) as u8)
        .collect();
    let mut builder = MessageBuilder::builder()
        .set_topic(args.text("topic", ""))
        .set_body(body)
        .set_keys(vec![format!("{prefix}-{index}"), format!("all-{prefix}")])
        .set_properties(HashMap::from([
            ("index", index.to_string()),
            ("note", "grün € 😀".to_string()),
        ]));
    if !args.in_turn("tags", index).is_empty() {
        builder = builder.set_tag(args.in_turn("tags", index));
    }
    if !args.in_turn("groups", index).is_empty() {
        builder = builder.set_message_group(args.in_turn("groups", index));
    }
    if let Ok(delay) = args.in_turn("delays-ms", index).parse::<u64>() {
        builder = builder.set_delivery_timestamp((now_ms() + delay).div_ceil(1000) as i64);
    }
    if transactional {
        builder = builder.enable_transaction();
    }
    Ok(builder.build()?)
}

/// Send `count` messages and print the receipt of each. This client has neither priorities nor recalls.
async fn produce(args: &Args) -> Result<(), Failure> {
    for name in ["priorities", "recall"] {
        if !args.text(name, "").is_empty() {
            return Err(format!("this client has no {name}").into());
        }
    }
    let mut producer = Producer::new(args.producer(), args.client())?;
    producer.start().await?;
    let count = args.number("count", 10) as usize;
    for index in 0..count {
        let receipt = producer.send(message(args, index, false)?).await?;
        print(
            "sent",
            json!({"index": index, "msgId": receipt.message_id()}),
        );
    }
    producer.shutdown().await?;
    print("summary", json!({"sent": count, "failed": 0}));
    Ok(())
}

/// Send `count` half messages; `verdicts` (commit, rollback, or unknown for none) take turns. The broker asks
/// about those without one, and the answer is `check`; about one that has its verdict, it is that verdict.
async fn transact(args: &Args) -> Result<(), Failure> {
    let asked = args.clone();
    let checker = move |_transaction: String, message: MessageView| {
        print("checked", fields(&message));
        let mut verdict = asked.in_turn("verdicts", index_of(&message));
        if verdict == "unknown" {
            verdict = asked.text("check", "commit");
        }
        match verdict {
            "commit" => TransactionResolution::COMMIT,
            "rollback" => TransactionResolution::ROLLBACK,
            _ => TransactionResolution::UNKNOWN,
        }
    };
    let mut producer =
        Producer::new_transaction_producer(args.producer(), args.client(), Box::new(checker))?;
    producer.start().await?;
    let count = args.number("count", 3) as usize;
    for index in 0..count {
        let transaction = producer
            .send_transaction_message(message(args, index, true)?)
            .await?;
        print(
            "sent",
            json!({"index": index, "msgId": transaction.message_id()}),
        );
        match args.in_turn("verdicts", index) {
            "commit" => transaction.commit().await?,
            "rollback" => transaction.rollback().await?,
            _ => (),
        }
    }
    print("all-sent", json!({}));
    await_end().await;
    producer.shutdown().await?;
    print("summary", json!({"sent": count}));
    Ok(())
}

/// Receive by a simple consumer until `expected` messages are acknowledged or, without that, until standard
/// input closes. A message that fails is not acknowledged: this client cannot change for how long one is hidden.
async fn receive(args: &Args) -> Result<(), Failure> {
    let topic = args.text("topic", "");
    let mut option = SimpleConsumerOption::default();
    option.set_topics(vec![topic]);
    option.set_consumer_group(args.text("group", ""));
    let mut consumer = SimpleConsumer::new(option, args.client())?;
    consumer.start().await?;
    print("started", json!({}));
    let kind = if args.text("sql", "") == "true" {
        FilterType::Sql
    } else {
        FilterType::Tag
    };
    let filter = FilterExpression::new(kind, args.text("expression", "*"));
    let hidden = Duration::from_secs(args.number("invisible-s", 30));
    let expected = args.number("expected", 0);
    let end = tokio::spawn(await_end());
    let mut done = 0;
    while done < expected || expected == 0 && !end.is_finished() {
        for message in consumer.receive_with(topic, &filter, 16, hidden).await? {
            print("message", fields(&message));
            let fails = args
                .in_turn("fail-times", index_of(&message))
                .parse()
                .unwrap_or(0);
            if message.delivery_attempt() > fails {
                consumer.ack(&message).await?;
                print("acknowledged", json!({"msgId": message.message_id()}));
                done += 1;
            }
        }
    }
    consumer.shutdown().await?;
    print("summary", json!({"received": done}));
    Ok(())
}

#[tokio::main(worker_threads = 2)]
async fn main() {
    let mut all = std::env::args().skip(1);
    let scenario = all.next().unwrap_or_default();
    let args = Args(
        all.map(|arg| {
            let (name, value) = arg.split_once('=').expect("--name=value");
            (name.trim_start_matches("--").to_string(), value.to_string())
        })
        .collect(),
    );
    let outcome = match scenario.as_str() {
        "produce" => produce(&args).await,
        "transact" => transact(&args).await,
        "receive" => receive(&args).await,
        _ => Err(format!("unknown scenario {scenario}").into()),
    };
    let code = match outcome {
        Ok(()) => 0,
        Err(failure) if args.text("may-fail", "") == "true" => {
            print(
                "failed",
                json!({"error": format!("{failure:?}"), "cause": null}),
            );
            print("summary", json!({"failed": 1}));
            0
        }
        Err(failure) => {
            eprintln!("{failure:?}");
            1
        }
    };
    // A task that reads standard input would keep the runtime.
    std::process::exit(code);
}
