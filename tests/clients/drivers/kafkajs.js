// Does with kafkajs what tests/clients/drivers/kafkajs.py asks: `node kafkajs.js COMMAND JSON`; one JSON value per line on stdout.
// Bytes travel as base64, null as null.
const { Kafka, CompressionTypes, logLevel } = require('kafkajs');

const [command, text] = process.argv.slice(2);
const given = JSON.parse(text);
const options = given.file ? JSON.parse(require('fs').readFileSync(given.file)) : given;
const kafka = new Kafka({
  clientId: 'kafkajs', brokers: options.bootstrapServers, logLevel: logLevel.ERROR,
  logCreator: () => ({ log }) => process.stderr.write(JSON.stringify(log) + '\n'),
});
const bytes = (value) => (value === null ? null : Buffer.from(value, 'base64'));
const base64 = (value) => (value === null || value === undefined ? null : Buffer.from(value).toString('base64'));
const say = (value) => process.stdout.write(JSON.stringify(value) + '\n');

async function produce() {
  const producer = kafka.producer({ idempotent: true });
  await producer.connect();
  const messages = options.records.map((record) => {
    const headers = {};
    for (const [name, value] of record.headers) (headers[name] = headers[name] || []).push(bytes(value));
    return {
      key: bytes(record.key), value: bytes(record.value), partition: record.partition, headers,
      timestamp: record.timestamp === null ? undefined : String(record.timestamp),
    };
  });
  const compression = options.compression === 'gzip' ? CompressionTypes.GZIP : CompressionTypes.None;
  await producer.send({ topic: options.topic, acks: -1, compression, messages });
  await producer.disconnect();
}

const headersOf = (message) => Object.entries(message.headers || {}).flatMap(([name, values]) =>
  (Array.isArray(values) ? values : [values]).map((value) => [name, base64(value)]));

async function read() {
  const admin = kafka.admin();
  await admin.connect();
  const offsets = await admin.fetchTopicOffsets(options.topic);
  await admin.disconnect();
  const { low, high } = offsets.find((each) => each.partition === options.partition);
  const wanted = Math.min(options.count, Number(high) - Number(low));
  if (wanted === 0) return;
  const consumer = kafka.consumer({ groupId: options.group, maxBytesPerPartition: 2000000 });
  await consumer.connect();
  await consumer.subscribe({ topic: options.topic, fromBeginning: true });
  let seen = 0;
  await new Promise((resolve) => consumer.run({
    eachMessage: async ({ partition, message }) => {
      if (partition !== options.partition || seen >= wanted) return;
      seen += 1;
      say({ key: base64(message.key), value: base64(message.value), headers: headersOf(message), timestamp: Number(message.timestamp) });
      if (seen === wanted) resolve();
    },
  }));
  await consumer.disconnect();
}

async function offsetAt() {
  const admin = kafka.admin();
  await admin.connect();
  const end = (await admin.fetchTopicOffsets(options.topic)).find((each) => each.partition === options.partition).high;
  const found = await admin.fetchTopicOffsetsByTimestamp(options.topic, options.timestamp);
  const offset = found.find((each) => each.partition === options.partition).offset;
  say(Number(offset) < 0 || Number(offset) >= Number(end) ? null : Number(offset));
  await admin.disconnect();
}

async function join() {
  const consumer = kafka.consumer({
    groupId: options.group, sessionTimeout: 10000, heartbeatInterval: 300, metadataMaxAge: 2000, rebalanceTimeout: 10000,
  });
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => say({ assigned: payload.memberAssignment[options.topic] || [] }));
  consumer.on(consumer.events.REBALANCING, () => say({ assigned: [] }));
  await consumer.connect();
  await consumer.subscribe({ topic: options.topic, fromBeginning: true });
  await consumer.run({
    autoCommit: false,
    eachMessage: async ({ topic, partition, message }) => {
      say({ partition, offset: Number(message.offset), value: base64(message.value) });
      await consumer.commitOffsets([{ topic, partition, offset: String(Number(message.offset) + 1) }]);
    },
  });
  await new Promise((resolve) => process.stdin.on('end', resolve).resume());
  await consumer.disconnect();
}

async function administer() {
  const admin = kafka.admin();
  const { topic } = options;
  await admin.connect();
  const until = async (what, condition) => {
    const deadline = Date.now() + 30000;
    while (!(await condition())) {
      if (Date.now() > deadline) throw new Error(`not within 30 s: ${what}`);
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  };
  const partitions = async () => {
    if (!(await admin.listTopics()).includes(topic)) return 0;
    return (await admin.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions.length;
  };
  const resource = { type: 2, name: topic };
  await admin.createTopics({ topics: [{ topic, numPartitions: 2, replicationFactor: 3 }], waitForLeaders: true });
  await until('2 partitions', async () => (await partitions()) === 2);
  await admin.alterConfigs({ validateOnly: false, resources: [{ ...resource, configEntries: [{ name: 'retention.ms', value: '86400000' }] }] });
  await until('retention.ms', async () => {
    const described = await admin.describeConfigs({ includeSynonyms: false, resources: [{ ...resource, configNames: ['retention.ms'] }] });
    return described.resources[0].configEntries[0].configValue === '86400000';
  });
  await admin.createPartitions({ topicPartitions: [{ topic, count: 3 }] });
  await until('3 partitions', async () => (await partitions()) === 3);
  await admin.listGroups();
  await admin.deleteTopics({ topics: [topic], timeout: 30000 });
  await until('it is gone', async () => (await partitions()) === 0);
  await admin.disconnect();
}

// The values before the last stable offset, which is what kafkajs' admin client is told as the end.
async function readCommitted() {
  const { topic, partition } = options;
  const admin = kafka.admin();
  await admin.connect();
  const { low, high } = (await admin.fetchTopicOffsets(topic)).find((each) => each.partition === partition);
  await admin.disconnect();
  if (low === high) return;
  const consumer = kafka.consumer({ groupId: options.group, readUncommitted: false });
  const ended = new Promise((resolve) => consumer.on(consumer.events.END_BATCH_PROCESS, ({ payload }) => {
    if (payload.partition === partition && Number(payload.lastOffset) + 1 >= Number(high)) resolve();
  }));
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  await consumer.run({
    eachMessage: async (each) => { if (each.partition === partition && Number(each.message.offset) < Number(high)) say(base64(each.message.value)); },
  });
  await ended;
  await consumer.disconnect();
}

const transactional = () => kafka.producer({
  transactionalId: options.transactionalId, transactionTimeout: options.timeoutMs, idempotent: true, maxInFlightRequests: 1,
});

// The end of a transaction is answered before its markers are written, and kafkajs leaves it to its user to begin the next one later.
async function again(work) {
  const deadline = Date.now() + 30000;
  for (;;) {
    try {
      return await work();
    } catch (error) {
      if (error.type !== 'CONCURRENT_TRANSACTIONS' || Date.now() > deadline) throw error;
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  }
}

// One command per line on stdin, one answer to each: null, or the type of the error.
async function transact() {
  const producer = transactional();
  await producer.connect();
  let transaction = null;
  const commands = {
    begin: async () => { transaction = await producer.transaction(); },
    send: ({ topic, partition, values }) => again(() => transaction.send({ topic, messages: values.map((value) => ({ partition, value: bytes(value) })) })),
    commit: () => transaction.commit(),
    abort: () => transaction.abort(),
  };
  // kafkajs asks for its epoch with each transaction; who had the id before is fenced by the first one.
  await (await producer.transaction()).abort();
  say(null);
  for await (const line of require('readline').createInterface({ input: process.stdin })) {
    const given = JSON.parse(line);
    try {
      await commands[given.command](given);
      say(null);
    } catch (error) {
      process.stderr.write(`${error.stack}\n`);
      say(error.type || error.name);
    }
  }
}

async function copy() {
  const { source, target, group, count } = options;
  const producer = transactional();
  const consumer = kafka.consumer({ groupId: group, readUncommitted: false });
  await producer.connect();
  await consumer.connect();
  await consumer.subscribe({ topic: source, fromBeginning: true });
  let number = 0;
  await new Promise((resolve, reject) => consumer.run({
    autoCommit: false,
    eachBatchAutoResolve: false,
    eachBatch: async ({ batch }) => {
      const messages = batch.messages.slice(0, 5);
      const last = messages[messages.length - 1].offset;
      const offset = String(Number(last) + 1);
      try {
        const transaction = await producer.transaction();
        await again(() => transaction.send({ topic: target, messages: messages.map(({ value }) => ({ partition: 0, value })) }));
        await transaction.sendOffsets({ consumerGroupId: group, topics: [{ topic: source, partitions: [{ partition: 0, offset }] }] });
        number += 1;
        if (number % 3 === 0) {
          await transaction.abort();
          consumer.seek({ topic: source, partition: 0, offset: messages[0].offset });
          return;
        }
        await transaction.commit();
        consumer.seek({ topic: source, partition: 0, offset });
        if (Number(offset) >= count) resolve();
      } catch (error) {
        reject(error);
        throw error;
      }
    },
  }));
  await consumer.disconnect();
  await producer.disconnect();
}

({ produce, read, offsetAt, join, administer, readCommitted, transact, copy })[command]().then(() => process.exit(0), (error) => {
  process.stderr.write(`${error.stack}\n`);
  process.exit(1);
});
