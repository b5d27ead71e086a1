// Sends one prebuilt request frame again and again, and takes the time of every response.
//
//   load FRAME_FILE PORT CONNECTIONS DEPTH REQUESTS ERROR_AT [OFFSET_AT OFFSET_STRIDE OFFSET_COUNT]
//
// FRAME_FILE holds a whole request, size first; it goes to 127.0.0.1:PORT on CONNECTIONS connections with up to DEPTH unanswered
// requests on each, REQUESTS in all. ERROR_AT is where in a response, counted from its correlation id, the int16 error code stands.
// With OFFSET_AT, the int64 there in the frame is set anew for each request: (n mod OFFSET_COUNT) * OFFSET_STRIDE.
// Prints one JSON line. Exit status 1: a connection ended, nothing came for 30 seconds, or a response carried an error.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { DEPTH_MAX = 1024, READ_BYTES = 1 << 20, EVENTS = 512, QUIET_MS = 30000 };

struct connection {
  int descriptor, unanswered, is_sending, waits_for_room;
  size_t sent;
  uint8_t size_bytes[4], error_bytes[2];
  unsigned size_have;
  uint32_t size, have;
  double sent_at[DEPTH_MAX];
  unsigned newest, oldest;
};

static struct { uint8_t *bytes; size_t length; long offset_at; uint64_t stride, count; } frame;
static struct { long wanted, begun, done, errors; uint64_t bytes_in; double *seconds; } run;
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

static void read_frame(const char *path) {
  int file = open(path, O_RDONLY);
  struct stat status;
  if (file < 0 || fstat(file, &status)) fail(path);
  frame.length = (size_t)status.st_size;
  frame.bytes = malloc(frame.length);
  for (size_t have = 0; have < frame.length;) {
    ssize_t count = read(file, frame.bytes + have, frame.length - have);
    if (count <= 0) fail(path);
    have += (size_t)count;
  }
  close(file);
}

static void connect_to(struct connection *connection, int port, uint32_t number) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  int on = 1;
  connection->descriptor = socket(AF_INET, SOCK_STREAM, 0);
  if (connection->descriptor < 0 || connect(connection->descriptor, (void *)&address, sizeof address)) fail("connect");
  setsockopt(connection->descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  fcntl(connection->descriptor, F_SETFL, O_NONBLOCK);
  struct epoll_event event = {.events = EPOLLIN, .data.u32 = number};
  if (epoll_ctl(poller, EPOLL_CTL_ADD, connection->descriptor, &event)) fail("epoll_ctl");
}

static void set_offset(void) {
  uint64_t offset = (uint64_t)run.begun % frame.count * frame.stride;
  for (int byte = 0; byte < 8; byte++) frame.bytes[frame.offset_at + byte] = (uint8_t)(offset >> (56 - 8 * byte));
}

// With a frame that changes, a connection that could not send the whole of one must not be overtaken by another.
static void send_more(struct connection *connection, uint32_t number) {
  while (connection->is_sending || ((unsigned)connection->unanswered < depth && run.begun < run.wanted)) {
    if (!connection->is_sending) {
      if (frame.offset_at) set_offset();
      connection->is_sending = 1;
      connection->sent = 0;
      connection->sent_at[connection->newest++ % DEPTH_MAX] = now();
      run.begun++;
    }
    ssize_t count = write(connection->descriptor, frame.bytes + connection->sent, frame.length - connection->sent);
    if (count < 0) {
      if (errno == EAGAIN) break;
      fail("write");
    }
    connection->sent += (size_t)count;
    if (connection->sent == frame.length) {
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
  run.errors += connection->error_bytes[0] || connection->error_bytes[1];
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

int main(int argc, char **argv) {
  if (argc != 7 && argc != 10) {
    fprintf(stderr, "usage: see the head of load.c\n");
    return 2;
  }
  read_frame(argv[1]);
  int port = atoi(argv[2]);
  uint32_t connection_count = (uint32_t)atoi(argv[3]);
  depth = (unsigned)atoi(argv[4]);
  run.wanted = atol(argv[5]);
  error_at = (uint32_t)atoi(argv[6]);
  if (argc == 10) {
    frame.offset_at = atol(argv[7]);
    frame.stride = strtoull(argv[8], NULL, 10);
    frame.count = strtoull(argv[9], NULL, 10);
  }
  if (depth < 1 || depth > DEPTH_MAX || connection_count < 1 || run.wanted < 1) return 2;
  poller = epoll_create1(0);
  struct connection *connections = calloc(connection_count, sizeof *connections);
  run.seconds = malloc(sizeof(double) * (size_t)run.wanted);
  uint8_t *received = malloc(READ_BYTES);
  for (uint32_t number = 0; number < connection_count; number++) connect_to(&connections[number], port, number);
  double began = now();
  for (uint32_t number = 0; number < connection_count; number++) send_more(&connections[number], number);
  struct epoll_event events[EVENTS];
  while (run.done < run.wanted) {
    int ready = epoll_wait(poller, events, EVENTS, QUIET_MS);
    if (ready <= 0) fail("nothing came");
    for (int index = 0; index < ready; index++) {
      uint32_t number = events[index].data.u32;
      struct connection *connection = &connections[number];
      if (events[index].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
        ssize_t count = read(connection->descriptor, received, READ_BYTES);
        if (count == 0 || (count < 0 && errno != EAGAIN)) fail("connection ended");
        if (count > 0) {
          run.bytes_in += (uint64_t)count;
          take(connection, received, (size_t)count);
        }
      }
      send_more(connection, number);
    }
  }
  double seconds = now() - began;
  qsort(run.seconds, (size_t)run.done, sizeof *run.seconds, by_size);
  printf("{\"seconds\": %.6f, \"requests\": %ld, \"bytes_out\": %.0f, \"bytes_in\": %.0f, \"p50_us\": %.1f, \"p99_us\": %.1f, \"errors\": %ld}\n",
         seconds, run.done, (double)frame.length * (double)run.done, (double)run.bytes_in, run.seconds[run.done / 2] * 1e6,
         run.seconds[run.done * 99 / 100] * 1e6, run.errors);
  return run.errors != 0;
}
