// Does with franz-go what tests/clients/drivers/franzgo.py asks: `franzgo COMMAND JSON`; one JSON value per line on stdout.
// Bytes travel as base64.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

type options struct {
	BootstrapServers []string
	TransactionalID  string
	TimeoutMs        int
	Topic            string
	Partition        int32
	Source           string
	Target           string
	Group            string
	Count            int64
	Batch            int
}

type request struct {
	Command   string
	Topic     string
	Partition int32
	Values    [][]byte
}

func say(value any) {
	if err := json.NewEncoder(os.Stdout).Encode(value); err != nil {
		panic(err)
	}
}

func transactional(given options) []kgo.Opt {
	return []kgo.Opt{
		kgo.SeedBrokers(given.BootstrapServers...),
		kgo.TransactionalID(given.TransactionalID),
		kgo.TransactionTimeout(time.Duration(given.TimeoutMs) * time.Millisecond),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	}
}

// One command per line on stdin, one answer to each: null, or the name of the error.
func transact(ctx context.Context, given options) error {
	client, err := kgo.NewClient(transactional(given)...)
	if err != nil {
		return err
	}
	defer client.Close()
	// Whoever has a transaction open is fenced, and asked again until that is aborted.
	for {
		_, _, err := client.ProducerID(ctx)
		if err == nil {
			break
		}
		if !errors.Is(err, kerr.ConcurrentTransactions) || ctx.Err() != nil {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
	say(nil)
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var asked request
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			return err
		}
		err := obey(ctx, client, asked)
		var told *kerr.Error
		switch {
		case err == nil:
			say(nil)
		case errors.As(err, &told):
			say(told.Message)
		default:
			say(err.Error())
		}
	}
	return lines.Err()
}

func obey(ctx context.Context, client *kgo.Client, asked request) error {
	switch asked.Command {
	case "begin":
		return client.BeginTransaction()
	case "send":
		var records []*kgo.Record
		for _, value := range asked.Values {
			records = append(records, &kgo.Record{Topic: asked.Topic, Partition: asked.Partition, Value: value})
		}
		return client.ProduceSync(ctx, records...).FirstErr()
	case "commit":
		return client.EndTransaction(ctx, kgo.TryCommit)
	case "abort":
		return client.EndTransaction(ctx, kgo.TryAbort)
	}
	return fmt.Errorf("unknown command %q", asked.Command)
}

func lastStableOffset(ctx context.Context, client *kgo.Client, given options) (int64, error) {
	asked := kmsg.NewPtrListOffsetsRequest()
	asked.ReplicaID = -1
	asked.IsolationLevel = 1
	topic := kmsg.NewListOffsetsRequestTopic()
	topic.Topic = given.Topic
	partition := kmsg.NewListOffsetsRequestTopicPartition()
	partition.Partition = given.Partition
	partition.Timestamp = -1
	topic.Partitions = append(topic.Partitions, partition)
	asked.Topics = append(asked.Topics, topic)
	answer, err := asked.RequestWith(ctx, client)
	if err != nil {
		return 0, err
	}
	found := answer.Topics[0].Partitions[0]
	return found.Offset, kerr.ErrorForCode(found.ErrorCode)
}

// The values before the last stable offset. Control records are kept, and left out: one may be the last.
func readCommitted(ctx context.Context, given options) error {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(given.BootstrapServers...),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{given.Topic: {given.Partition: kgo.NewOffset().AtStart()}}),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	end, err := lastStableOffset(ctx, client, given)
	if err != nil {
		return err
	}
	for next := int64(0); next < end; {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return err
		}
		for _, record := range fetches.Records() {
			next = record.Offset + 1
			if next <= end && !record.Attrs.IsControl() {
				say(record.Value)
			}
		}
	}
	return nil
}

func copyRecords(ctx context.Context, given options) error {
	session, err := kgo.NewGroupTransactSession(append(
		transactional(given),
		kgo.ConsumerGroup(given.Group),
		kgo.Balancers(kgo.RangeBalancer()), // which other clients have, too
		kgo.SessionTimeout(10*time.Second),
		kgo.ConsumeTopics(given.Source),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets(),
	)...)
	if err != nil {
		return err
	}
	defer session.Close()
	for number, committed := 1, int64(0); committed < given.Count; number++ {
		fetches := session.PollRecords(ctx, given.Batch)
		if err := fetches.Err(); err != nil {
			return err
		}
		if err := session.Begin(); err != nil {
			return err
		}
		var records []*kgo.Record
		last := committed
		for _, record := range fetches.Records() {
			records = append(records, &kgo.Record{Topic: given.Target, Partition: record.Partition, Value: record.Value})
			last = record.Offset + 1
		}
		if err := session.ProduceSync(ctx, records...).FirstErr(); err != nil {
			return err
		}
		hasCommitted, err := session.End(ctx, kgo.TransactionEndTry(number%3 != 0))
		if err != nil {
			return err
		}
		if hasCommitted {
			committed = last
		}
	}
	return nil
}

func main() {
	var given options
	if err := json.Unmarshal([]byte(os.Args[2]), &given); err != nil {
		panic(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	commands := map[string]func(context.Context, options) error{"transact": transact, "readCommitted": readCommitted, "copy": copyRecords}
	if err := commands[os.Args[1]](ctx, given); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
