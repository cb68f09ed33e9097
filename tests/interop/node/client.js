'use strict';

// Client program of the interop suite: node client.js <scenario> --name=value ..., JSON lines on
// standard output. Scenarios produce (mode sync) and consume (one member a process); their
// events are those of the Java program.

const zlib = require('zlib');
const { Producer, Consumer, Message } = require('ali-ons');

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

function options(args) {
  return {
    nameSrv: args.namesrv,
    httpclient: {}, // only used to look name servers up over HTTP
    logger: quiet,
    accessKeyId: args['access-key'] || 'interop',
    accessKeySecret: args['secret-key'] || 'interop',
    persistConsumerOffsetInterval: 1000,
    rebalanceInterval: 2000,
  };
}

// The pattern every client program of the suite sends.
function body(index, size) {
  const bytes = Buffer.alloc(size);
  for (let j = 0; j < size; j++) bytes[j] = (index * 31 + j * 7 + Math.floor(j / 256)) & 0xff;
  return bytes;
}

async function produce(args) {
  if ((args.mode || 'sync') !== 'sync') throw new Error(`this client has no mode ${args.mode}`);
  const producer = new Producer({ ...options(args), producerGroup: args.group || 'interop-producer' });
  await producer.ready();
  const prefix = args.prefix || 'm';
  const tags = (args.tags || '').split(',');
  const first = Number(args.first || 0);
  const count = Number(args.count || 10);
  for (let index = first; index < first + count; index++) {
    const message = new Message(
      args.topic, tags[index % tags.length], body(index, Number(args.size || 64)));
    message.keys = [ `${prefix}-${index}`, `all-${prefix}` ];
    message.flag = index % 7;
    message.properties.index = String(index);
    message.properties.note = 'grün € 😀';
    const result = await producer.send(message);
    print('sent', {
      index,
      count: 1,
      status: result.sendStatus === 'SEND_OK' || result.sendStatus === 0 ? 'SEND_OK' : String(result.sendStatus),
      msgId: result.msgId,
      topic: args.topic,
      brokerName: result.messageQueue.brokerName,
      queueId: Number(result.messageQueue.queueId),
      queueOffset: Number(result.queueOffset),
    });
  }
  await producer.close();
  print('summary', { sent: count, failed: 0 });
}

function messageFields(message) {
  return {
    topic: message.topic,
    msgId: message.msgId,
    queueId: message.queueId,
    queueOffset: Number(message.queueOffset),
    commitLogOffset: Number(message.commitLogOffset),
    tags: message.tags,
    keys: message.keys,
    properties: message.properties,
    size: message.body.length,
    crc32: crc32(message.body),
    flag: message.flag,
    sysFlag: message.sysFlag,
    bornTimestamp: Number(message.bornTimestamp),
    storeTimestamp: Number(message.storeTimestamp),
    reconsumeTimes: message.reconsumeTimes,
  };
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

async function consume(args) {
  const expected = Number(args.expected || Infinity);
  const member = args.member || 'member';
  const consumer = new Consumer({
    ...options(args),
    consumerGroup: args.group,
    consumeFromWhere: args.from === 'last' ? 'CONSUME_FROM_LAST_OFFSET' : 'CONSUME_FROM_FIRST_OFFSET',
  });
  let received = 0;
  let finished;
  const done = new Promise(resolve => { finished = resolve; });
  consumer.subscribe(args.topic, args.expression || '*', async message => {
    print('message', { member, ...messageFields(message) });
    if (args['delay-ms']) await new Promise(resolve => setTimeout(resolve, Number(args['delay-ms'])));
    if (++received >= expected) finished();
  });
  await consumer.ready();
  print('started', { member });
  if (args['until-stdin'] === 'true') {
    process.stdin.on('end', finished).resume();
  } else {
    setTimeout(finished, Number(args['timeout-ms'] || 60000));
  }
  await done;
  await consumer.close();
  print('summary', { received });
}

async function main() {
  const scenario = { produce, consume }[process.argv[2]];
  if (!scenario) throw new Error(`unknown scenario ${process.argv[2]}`);
  const args = parseArgs(process.argv.slice(3));
  try {
    await scenario(args);
  } catch (error) {
    if (args['may-fail'] !== 'true') throw error;
    print('failed', { error: String(error) });
    print('summary', {});
  }
}

// The client's own timers would keep the process alive.
main().then(() => process.exit(0), error => {
  console.error(error);
  process.exit(1);
});
