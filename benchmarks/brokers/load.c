// Sends prebuilt request frames again and again, and takes the time of every response.
//
//   load [--turns PROCESS BLOCK SIGNAL SIGNAL] FRAME_FILE PORT CONNECTIONS DEPTH REQUESTS ERROR_AT [OFFSET_AT OFFSET_STRIDE OFFSET_COUNT | BATCH_AT]
//
// FRAME_FILE holds whole requests, size first; they go to 127.0.0.1:PORT on CONNECTIONS connections with up to DEPTH unanswered
// requests on each, REQUESTS in all, each connection taking the frames in an order of its own. ERROR_AT is where in a response,
// counted from its correlation id, the int16 error code stands.
// With OFFSET_AT, the int64 there in the (only) frame is set anew for each request: (n mod OFFSET_COUNT) * OFFSET_STRIDE.
// With BATCH_AT, a record batch with one record begins there in each frame and ends with it, and each connection is an idempotent
// producer: timestamps, producer id, sequence and checksum of the batch are set anew for each request.
// With --turns two sides have turns of BLOCK requests each, 0 1 1 0 0 1 1 0 and so on. Of two frames each side has one, and every
// second connection; one frame is sent by both, from all connections. Before its turn a side sends the process its SIGNAL, unless
// that is 0. What processor time the process had for each turn is printed too, in nanoseconds.
// Compiled with -DTLS (and -lssl -lcrypto) the connections are secured; who answers is not verified. The handshakes come before
// the time is taken.
// Prints one JSON line. Exit status 1: a connection ended, nothing came for 30 seconds, or a response carried an error.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#ifdef TLS
#include <openssl/ssl.h>
#endif

enum { DEPTH_MAX = 1024, READ_BYTES = 1 << 20, EVENTS = 512, QUIET_MS = 30000, REST_US = 1000, SIGNAL_US = 3000 };

struct connection {
  int descriptor, unanswered, is_sending, waits_for_room;
  size_t sent;
  uint8_t size_bytes[4], error_bytes[2];
  unsigned size_have;
  uint32_t size, have, sequence;
  uint64_t random;
  uint8_t *sending, *own;
  size_t sending_length;
  double sent_at[DEPTH_MAX];
  unsigned newest, oldest;
#ifdef TLS
  SSL *tls;
#endif
};

static struct { uint8_t *bytes; size_t length; } file_of_frames, *frames;
static struct { long offset_at, batch_at; uint64_t stride, count; } changes;
static struct { long wanted, begun, done, errors, error_code; uint64_t bytes_in, bytes_out; double *seconds; } run;
static struct { pid_t process; clockid_t clock; long block; int signals[2]; } turns;
static size_t frame_count, longest;
static uint32_t crc_table[256];
static uint32_t error_at;
static unsigned depth;
static int poller;

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void fail(const char *what) {
  fprintf(stderr, "%s after %ld responses: %s\n", what, run.done, strerror(errno));
  exit(1);
}

static uint64_t read_number(const uint8_t *bytes, int count) {
  uint64_t number = 0;
  while (count--) number = number << 8 | *bytes++;
  return number;
}

static void write_number(uint8_t *bytes, int count, uint64_t number) {
  for (; count--; number >>= 8) bytes[count] = (uint8_t)number;
}

static void read_frames(const char *path) {
  int file = open(path, O_RDONLY);
  struct stat status;
  if (file < 0 || fstat(file, &status)) fail(path);
  file_of_frames.length = (size_t)status.st_size;
  file_of_frames.bytes = malloc(file_of_frames.length);
  for (size_t have = 0; have < file_of_frames.length;) {
    ssize_t count = read(file, file_of_frames.bytes + have, file_of_frames.length - have);
    if (count <= 0) fail(path);
    have += (size_t)count;
  }
  close(file);
  frames = calloc(file_of_frames.length / 4, sizeof *frames);
  for (size_t at = 0; at + 4 <= file_of_frames.length; at += frames[frame_count++].length) {
    frames[frame_count].bytes = file_of_frames.bytes + at;
    frames[frame_count].length = 4 + (size_t)read_number(file_of_frames.bytes + at, 4);
    if (frames[frame_count].length > longest) longest = frames[frame_count].length;
  }
}

static void make_crc_table(void) {
  for (uint32_t byte = 0; byte < 256; byte++) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; bit++) value = value >> 1 ^ (value & 1 ? 0x82f63b78 : 0);
    crc_table[byte] = value;
  }
}

static uint32_t crc32c(const uint8_t *bytes, size_t count) {
  uint32_t value = ~0u;
  while (count--) value = value >> 8 ^ crc_table[(value ^ *bytes++) & 0xff];
  return ~value;
}

// As read and write do it; with TLS one of either may take what is less than a record of it.
#ifdef TLS
static SSL_CTX *context;

static ssize_t tls_result(struct connection *connection, int count) {
  if (count > 0) return count;
  int error = SSL_get_error(connection->tls, count);
  if (error == SSL_ERROR_ZERO_RETURN) return 0;
  errno = error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE ? EAGAIN : EIO;
  return -1;
}

static ssize_t receive(struct connection *connection, uint8_t *bytes, size_t count) {
  return tls_result(connection, SSL_read(connection->tls, bytes, (int)count));
}

static ssize_t transmit(struct connection *connection, const uint8_t *bytes, size_t count) {
  return tls_result(connection, SSL_write(connection->tls, bytes, (int)count));
}

static void secure(struct connection *connection) {
  if (!context) context = SSL_CTX_new(TLS_client_method());
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  connection->tls = SSL_new(context);
  if (!SSL_set_fd(connection->tls, connection->descriptor) || SSL_connect(connection->tls) != 1) fail("handshake");
}
#else
static ssize_t receive(struct connection *connection, uint8_t *bytes, size_t count) { return read(connection->descriptor, bytes, count); }
static ssize_t transmit(struct connection *connection, const uint8_t *bytes, size_t count) { return write(connection->descriptor, bytes, count); }
static void secure(struct connection *connection) { (void)connection; }
#endif

// Whether bytes were taken from the socket and not given yet, of which the poller does not know.
static int is_left(struct connection *connection) {
#ifdef TLS
  return SSL_has_pending(connection->tls);
#else
  (void)connection;
  return 0;
#endif
}

static void connect_to(struct connection *connection, int port, uint32_t number) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  int on = 1;
  connection->descriptor = socket(AF_INET, SOCK_STREAM, 0);
  if (connection->descriptor < 0 || connect(connection->descriptor, (void *)&address, sizeof address)) fail("connect");
  setsockopt(connection->descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  secure(connection);
  fcntl(connection->descriptor, F_SETFL, O_NONBLOCK);
  struct epoll_event event = {.events = EPOLLIN, .data.u32 = number};
  if (epoll_ctl(poller, EPOLL_CTL_ADD, connection->descriptor, &event)) fail("epoll_ctl");
}

// The next frame of a connection, with what is to be set in it.
static void begin_frame(struct connection *connection, uint32_t number) {
  connection->random = connection->random * 6364136223846793005u + 1442695040888963407u;
  size_t chosen = (size_t)(turns.block ? number : connection->random >> 33) % frame_count;
  connection->sending = frames[chosen].bytes;
  connection->sending_length = frames[chosen].length;
  if (changes.offset_at) write_number(connection->sending + changes.offset_at, 8, (uint64_t)run.begun % changes.count * changes.stride);
  if (!changes.batch_at) return;
  memcpy(connection->own, connection->sending, connection->sending_length);
  connection->sending = connection->own;
  uint8_t *batch = connection->own + changes.batch_at;
  struct timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  uint64_t milliseconds = (uint64_t)time.tv_sec * 1000 + (uint64_t)time.tv_nsec / 1000000;
  write_number(batch + 27, 8, milliseconds);
  write_number(batch + 35, 8, milliseconds);
  write_number(batch + 43, 8, 1000 + number);
  write_number(batch + 51, 2, 0);
  write_number(batch + 53, 4, connection->sequence++);
  write_number(batch + 17, 4, crc32c(batch + 21, connection->sending_length - (size_t)changes.batch_at - 21));
}

// With a frame that changes, a connection that could not send the whole of one must not be overtaken by another.
static void send_more(struct connection *connection, uint32_t number) {
  while (connection->is_sending || ((unsigned)connection->unanswered < depth && run.begun < run.wanted)) {
    if (!connection->is_sending) {
      begin_frame(connection, number);
      connection->is_sending = 1;
      connection->sent = 0;
      connection->sent_at[connection->newest++ % DEPTH_MAX] = now();
      run.begun++;
    }
    ssize_t count = transmit(connection, connection->sending + connection->sent, connection->sending_length - connection->sent);
    if (count < 0) {
      if (errno == EAGAIN) break;
      fail("write");
    }
    connection->sent += (size_t)count;
    run.bytes_out += (uint64_t)count;
    if (connection->sent == connection->sending_length) {
      connection->is_sending = 0;
      connection->unanswered++;
    }
  }
  if (connection->is_sending != connection->waits_for_room) {
    connection->waits_for_room = connection->is_sending;
    struct epoll_event event = {.events = EPOLLIN | (connection->is_sending ? EPOLLOUT : 0), .data.u32 = number};
    epoll_ctl(poller, EPOLL_CTL_MOD, connection->descriptor, &event);
  }
}

static void response_complete(struct connection *connection) {
  run.seconds[run.done++] = now() - connection->sent_at[connection->oldest++ % DEPTH_MAX];
  if (connection->error_bytes[0] || connection->error_bytes[1]) {
    run.errors++;
    run.error_code = connection->error_bytes[0] << 8 | connection->error_bytes[1];
  }
  connection->unanswered--;
  connection->size_have = connection->have = 0;
}

static void take(struct connection *connection, const uint8_t *bytes, size_t count) {
  while (count) {
    if (connection->size_have < 4) {
      connection->size_bytes[connection->size_have++] = *bytes++;
      count--;
      const uint8_t *b = connection->size_bytes;
      connection->size = (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
      continue;
    }
    uint32_t part = connection->size - connection->have;
    if (part > count) part = (uint32_t)count;
    for (uint32_t byte = 0; byte < 2; byte++) {
      uint32_t at = error_at + byte;
      if (at >= connection->have && at < connection->have + part) connection->error_bytes[byte] = bytes[at - connection->have];
    }
    connection->have += part;
    bytes += part;
    count -= part;
    if (connection->have == connection->size) response_complete(connection);
  }
}

static int by_size(const void *first, const void *second) {
  double difference = *(const double *)first - *(const double *)second;
  return (difference > 0) - (difference < 0);
}

// Has the connections send what is wanted, every `step`th from `first` on, and waits for the responses.
static void send_wanted(struct connection *connections, uint32_t connection_count, uint32_t first, uint32_t step) {
  static uint8_t received[READ_BYTES];
  for (uint32_t number = first; number < connection_count; number += step) send_more(&connections[number], number);
  struct epoll_event events[EVENTS];
  while (run.done < run.wanted) {
    int ready = epoll_wait(poller, events, EVENTS, QUIET_MS);
    if (ready <= 0) fail("nothing came");
    for (int index = 0; index < ready; index++) {
      uint32_t number = events[index].data.u32;
      struct connection *connection = &connections[number];
      if (events[index].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
        ssize_t count;
        do {
          count = receive(connection, received, READ_BYTES);
          if (count == 0 || (count < 0 && errno != EAGAIN)) fail("connection ended");
          if (count > 0) {
            run.bytes_in += (uint64_t)count;
            take(connection, received, (size_t)count);
          }
        } while (count > 0 && is_left(connection));
      }
      send_more(connection, number);
    }
  }
}

static long long processor_ns(void) {
  struct timespec time;
  if (clock_gettime(turns.clock, &time)) fail("clock_gettime");
  return (long long)time.tv_sec * 1000000000 + time.tv_nsec;
}

// What the process has left to do of the last turn is not counted with the next one, nor is what a signal has it do.
static void send_in_turns(struct connection *connections, uint32_t connection_count, long requests) {
  uint32_t sides = (uint32_t)frame_count;
  printf("{\"processor_ns\": [");
  for (long turn = 0; turn < requests / turns.block; turn++) {
    uint32_t side = (uint32_t)((turn + 1) / 2 % 2);
    if (turns.signals[side]) {
      if (kill(turns.process, turns.signals[side])) fail("kill");
      usleep(SIGNAL_US);
    }
    long long before = processor_ns();
    run.wanted += turns.block;
    send_wanted(connections, connection_count, side % sides, sides);
    usleep(REST_US);
    printf("%s%lld", turn ? ", " : "", processor_ns() - before);
  }
  printf("], ");
}

int main(int argc, char **argv) {
  if (argc > 6 && !strcmp(argv[1], "--turns")) {
    turns.process = (pid_t)atol(argv[2]);
    turns.block = atol(argv[3]);
    turns.signals[0] = atoi(argv[4]);
    turns.signals[1] = atoi(argv[5]);
    if (turns.block < 1 || clock_getcpuclockid(turns.process, &turns.clock)) fail("--turns");
    argc -= 5;
    argv += 5;
  }
  if (argc != 7 && argc != 8 && argc != 10) {
    fprintf(stderr, "usage: see the head of load.c\n");
    return 2;
  }
  read_frames(argv[1]);
  make_crc_table();
  int port = atoi(argv[2]);
  uint32_t connection_count = (uint32_t)atoi(argv[3]);
  depth = (unsigned)atoi(argv[4]);
  long requests = atol(argv[5]);
  error_at = (uint32_t)atoi(argv[6]);
  if (argc == 8) changes.batch_at = atol(argv[7]);
  if (argc == 10) {
    changes.offset_at = atol(argv[7]);
    changes.stride = strtoull(argv[8], NULL, 10);
    changes.count = strtoull(argv[9], NULL, 10);
  }
  if (depth < 1 || depth > DEPTH_MAX || connection_count < 1 || requests < 1 || !frame_count) return 2;
  if (turns.block ? frame_count > 2 || connection_count < frame_count : changes.offset_at && frame_count > 1) return 2;
  poller = epoll_create1(0);
  struct connection *connections = calloc(connection_count, sizeof *connections);
  run.seconds = malloc(sizeof(double) * (size_t)requests);
  for (uint32_t number = 0; number < connection_count; number++) {
    connections[number].random = number;
    connections[number].own = malloc(longest);
    connect_to(&connections[number], port, number);
  }
  double began = now();
  if (turns.block) {
    send_in_turns(connections, connection_count, requests);
  } else {
    run.wanted = requests;
    printf("{");
    send_wanted(connections, connection_count, 0, 1);
  }
  double seconds = now() - began;
  qsort(run.seconds, (size_t)run.done, sizeof *run.seconds, by_size);
  printf("\"seconds\": %.6f, \"requests\": %ld, \"bytes_out\": %.0f, \"bytes_in\": %.0f, \"p50_us\": %.1f, \"p99_us\": %.1f, \"errors\": %ld, \"last_error_code\": %ld}\n",
         seconds, run.done, (double)run.bytes_out, (double)run.bytes_in, run.seconds[run.done / 2] * 1e6,
         run.seconds[run.done * 99 / 100] * 1e6, run.errors, run.error_code);
  return run.errors != 0;
}
