'use strict';

// Client program of the interop suite over RocketMQ's Node.js client for gRPC. A line of standard input names a
// scenario and its `--name=value`, separated by tabs. The line `end` ends a scenario that goes on until then. The
// program prints JSON lines, the last of a scenario is the event `ended`. Its scenarios and events are those of the
// Java program, `java/src/grpc`.

const readline = require('readline');
const zlib = require('zlib');
const { setTimeout: sleep } = require('timers/promises');
const { ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer } = require('rocketmq-client-nodejs');
const { FilterType, TransactionResolution } =
  require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const quiet = { debug() {}, info() {}, warn() {}, error: console.error };

function parseArgs(argv) {
  const args = {};
  for (const arg of argv) {
    const equals = arg.indexOf('=');
    if (!arg.startsWith('--') || equals < 0) throw new Error(`not --name=value: ${arg}`);
    args[arg.slice(2, equals)] = arg.slice(equals + 1);
  }
  return args;
}

function print(event, fields) {
  process.stdout.write(`${JSON.stringify({ event, ...fields })}\n`);
}

// Resolved when the line `end` comes.
let end;
let tellEnd = () => {};

const inTurn = (list, index) => {
  const all = (list || '').split(',');
  return all[index % all.length];
};

function options(args) {
  const made = {
    endpoints: args.endpoints,
    namespace: args.namespace || '',
    sslEnabled: args.tls === 'true',
    requestTimeout: 20000,
    logger: quiet,
  };
  if (args['access-key']) {
    made.sessionCredentials = { accessKey: args['access-key'], accessSecret: args['secret-key'] };
  }
  return made;
}

// The pattern every client program of the suite sends.
function body(index, size) {
  const bytes = Buffer.alloc(size);
  for (let j = 0; j < size; j++) bytes[j] = (index * 31 + j * 7 + Math.floor(j / 256)) & 0xff;
  return bytes;
}

function message(args, index) {
  const prefix = args.prefix || 'm';
  const made = {
    topic: args.topic,
    body: body(index, Number(args.size || 64)),
    keys: [ `${prefix}-${index}`, `all-${prefix}` ],
    properties: new Map([[ 'index', String(index) ], [ 'note', 'grün € 😀' ]]),
  };
  const tag = inTurn(args.tags, index);
  if (tag) made.tag = tag;
  const group = inTurn(args.groups, index);
  if (group) made.messageGroup = group;
  const delay = inTurn(args['delays-ms'], index);
  if (delay) made.deliveryTimestamp = new Date(Date.now() + Number(delay));
  const priority = inTurn(args.priorities, index);
  if (priority) made.priority = Number(priority);
  return made;
}

async function produce(args) {
  const producer = new Producer({ ...options(args), topics: [ args.topic ] });
  await producer.startup();
  const count = Number(args.count || 10);
  const handles = new Map();
  for (let index = 0; index < count; index++) {
    const receipt = await producer.send(message(args, index));
    handles.set(index, receipt.recallHandle);
    print('sent', { index, msgId: receipt.messageId, recallHandle: receipt.recallHandle });
  }
  for (const index of (args.recall || '').split(',').filter(Boolean).map(Number)) {
    const receipt = await producer.recallMessage(args.topic, handles.get(index));
    print('recalled', { index, msgId: receipt.messageId });
  }
  await producer.shutdown();
  print('summary', { sent: count, failed: 0 });
}

const RESOLUTIONS = { commit: TransactionResolution.COMMIT, rollback: TransactionResolution.ROLLBACK };

async function transact(args) {
  const checker = {
    async check(view) {
      print('checked', fields(view));
      const verdict = inTurn(args.verdicts, Number(view.properties.get('index')));
      return RESOLUTIONS[verdict === 'unknown' ? args.check || 'commit' : verdict];
    },
  };
  const producer = new Producer({ ...options(args), topics: [ args.topic ], checker });
  await producer.startup();
  const count = Number(args.count || 3);
  for (let index = 0; index < count; index++) {
    const transaction = producer.beginTransaction();
    const receipt = await producer.send(message(args, index), transaction);
    print('sent', { index, msgId: receipt.messageId });
    const verdict = inTurn(args.verdicts, index);
    if (verdict === 'commit') await transaction.commit();
    if (verdict === 'rollback') await transaction.rollback();
  }
  print('all-sent');
  await end;
  await producer.shutdown();
  print('summary', { sent: count });
}

// zlib.crc32 is newer than the oldest Node that the suite supports.
function crc32(bytes) {
  if (zlib.crc32) return zlib.crc32(bytes);
  let crc = 0xffffffff;
  for (const byte of bytes) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit++) crc = (crc >>> 1) ^ (crc & 1 ? 0xedb88320 : 0);
  }
  return (crc ^ 0xffffffff) >>> 0;
}

function fields(view) {
  const millis = date => (date === undefined ? null : date.getTime());
  return {
    topic: view.topic,
    tags: view.tag || null,
    keys: view.keys.join(' '),
    properties: Object.fromEntries(view.properties),
    size: view.body.length,
    crc32: crc32(view.body),
    msgId: view.messageId,
    group: view.messageGroup || null,
    deliveryTimestamp: millis(view.deliveryTimestamp),
    priority: view.priority === undefined ? null : view.priority,
    bornHost: view.bornHost,
    bornTimestamp: millis(view.bornTimestamp),
    attempt: view.deliveryAttempt,
    at: Date.now(),
  };
}

function fails(args, view) {
  return view.deliveryAttempt <= Number(inTurn(args['fail-times'], Number(view.properties.get('index'))) || 0);
}

function subscriptions(args) {
  const type = args.sql === 'true' ? FilterType.SQL : FilterType.TAG;
  return new Map([[ args.topic, new FilterExpression(args.expression || '*', type) ]]);
}

async function consume(args) {
  const member = args.member || 'member';
  let received = 0;
  const consumer = new PushConsumer({
    ...options(args),
    consumerGroup: args.group,
    subscriptions: subscriptions(args),
    messageListener: {
      async consume(view) {
        print('message', { member, ...fields(view) });
        received++;
        await sleep(Number(inTurn(args['delay-ms'], Number(view.properties.get('index')))));
        return fails(args, view) ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
      },
    },
  });
  await consumer.startup();
  print('started', { member });
  await end;
  await consumer.shutdown();
  print('summary', { received });
}

async function receive(args) {
  const consumer = new SimpleConsumer({
    ...options(args),
    consumerGroup: args.group,
    awaitDuration: Number(args['await-s'] || 5) * 1000,
    subscriptions: subscriptions(args),
  });
  await consumer.startup();
  print('started');
  let done = 0;
  let ended = false;
  end.then(() => { ended = true; });
  const goesOn = args.expected ? () => done < Number(args.expected) : () => !ended;
  while (goesOn()) {
    for (const view of await consumer.receive(16, Number(args['invisible-s'] || 30) * 1000)) {
      print('message', fields(view));
      if (fails(args, view)) {
        await consumer.changeInvisibleDuration(view, Number(args['hide-s'] || 1) * 1000);
        continue;
      }
      if (args['extend-s']) {
        await consumer.changeInvisibleDuration(view, Number(args['extend-s']) * 1000);
        await sleep(Number(args['hold-ms']));
      }
      await consumer.ack(view);
      print('acknowledged', { msgId: view.messageId });
      done++;
    }
  }
  await consumer.shutdown();
  print('summary', { received: done });
}

async function run(words) {
  const scenario = { produce, transact, consume, receive }[words[0]];
  if (!scenario) throw new Error(`unknown scenario ${words[0]}`);
  const args = parseArgs(words.slice(1));
  try {
    await scenario(args);
  } catch (error) {
    if (args['may-fail'] !== 'true') throw error;
    print('failed', { error: String(error), cause: String(error.cause) });
    print('summary', { failed: 1 });
  }
}

function fail(error) {
  console.error(error);
  process.exit(1);
}

readline.createInterface({ input: process.stdin }).on('line', line => {
  if (line === 'end') {
    tellEnd();
    return;
  }
  end = new Promise(resolve => { tellEnd = resolve; });
  run(line.split('\t')).then(() => print('ended'), fail);
  // The client's own timers would keep the process alive.
}).on('close', () => process.exit(0));
