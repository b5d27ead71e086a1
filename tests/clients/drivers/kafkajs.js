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

({ produce, read, offsetAt, join, administer })[command]().then(() => process.exit(0), (error) => {
  process.stderr.write(`${error.stack}\n`);
  process.exit(1);
});
