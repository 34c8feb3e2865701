/* meshnetd: brings programs on a machine without a TUN device to the tailnet, together with libmeshnet. */
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "close_later.h"
#include "dial.h"
#include "hold.h"
#include "localapi.h"
#include "orphans.h"
#include "own.h"
#include "server.h"

static const char HELP[] =
    "usage: meshnetd [--socks-port PORT] [--tailscaled-socket PATH] [--directory PATH] [--wait poll|dialled]\n"
    "\n"
    "Serves libmeshnet: connects programs to the tailnet over the SOCKS5 proxy of a tailscaled in user space.\n"
    "\n"
    "  --socks-port PORT         tailscaled's proxy on 127.0.0.1 (1055)\n"
    "  --tailscaled-socket PATH  its LocalAPI (/var/run/tailscale/tailscaled.sock)\n"
    "  --directory PATH          where the socket and the file `self` are put (" MN_DIRECTORY ")\n"
    "  --wait poll               programs wait in poll, never in a blocking connect\n"
    "  --wait dialled            connect() waits until the destination is reached, also where it is non-blocking.\n"
    "                            Without --wait, meshnetd finds out what this kernel can do\n";

static struct watch signals = {.fd = -1};

static void on_signal(struct watch *watch, uint32_t events) {
  (void)watch;
  (void)events;
  loop_stop();
}

static void catch_signals(void) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  sigprocmask(SIG_BLOCK, &set, NULL);
  signal(SIGPIPE, SIG_IGN);
  signals.ready = on_signal;
  int fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (fd < 0 || !loop_watch(&signals, fd, EPOLLIN)) say("meshnetd: signalfd: %s", strerror(errno));
}

/* Each connection takes two descriptors, and up to four more while bytes are on their way. */
static void raise_limit(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max < 65536 ? limit.rlim_max : 65536;
  setrlimit(RLIMIT_NOFILE, &limit);
}

static const char *described(unsigned mode) {
  if (mode == MN_MODE_HOLD) return "this kernel holds, opens and ends connecting sockets";
  if (mode == MN_MODE_POLL) return "this kernel does not end a blocking connect: programs wait in poll";
  return "this kernel does not hold connecting sockets: connect() waits, also where the socket is non-blocking";
}

static unsigned port_of(const char *text) {
  char *end;
  unsigned long port = strtoul(text, &end, 10);
  if (*text == 0 || *end || port == 0 || port > 65535) {
    fprintf(stderr, "meshnetd: not a port: %s\n", text);
    exit(2);
  }
  return (unsigned)port;
}

static unsigned mode_of(const char *word) {
  if (strcmp(word, "poll") == 0) return MN_MODE_POLL;
  if (strcmp(word, "dialled") == 0) return MN_MODE_DIALLED;
  fprintf(stderr, "meshnetd: --wait takes poll or dialled, not %s\n", word);
  exit(2);
}

static void serve(const char *directory, unsigned socks_port, unsigned wanted) {
  char path[256];
  if (mkdir(directory, 0755) != 0 && errno != EEXIST) say("meshnetd: %s: %s", directory, strerror(errno));
  snprintf(path, sizeof path, "%s/" MN_SOCKET_NAME, directory);
  if (!server_is_alone(path)) {
    say("meshnetd: %s: %s", path, strerror(errno));
    exit(1);
  }
  orphans_end();
  unsigned mode = hold_start(wanted, dial_accepted);
  if (!mode) {
    say("meshnetd: port %d on 127.0.0.1: %s", MN_HOLD_PORT, strerror(errno));
    exit(1);
  }
  say("meshnetd: %s", described(mode));
  dial_settings((struct dial_settings){.mode = mode, .socks_port = htons((uint16_t)socks_port)});
  snprintf(path, sizeof path, "%s/" MN_SELF_NAME, directory);
  own_start(path);
  snprintf(path, sizeof path, "%s/" MN_SOCKET_NAME, directory);
  if (!server_start(path, mode)) {
    say("meshnetd: %s: %s", path, strerror(errno));
    exit(1);
  }
  loop_run();
  unlink(path);
}

/* meshnetd's own connections must be the kernel's, also where /etc/ld.so.preload loads the library into it. The library
 * reads MESHNET when it is loaded. */
static void leave_library(char **argv) {
  const char *word = getenv("MESHNET");
  if (word && strcmp(word, "off") == 0) {
    prctl(PR_SET_NAME, "meshnetd"); /* for ps and pgrep: the kernel has taken "exe" from the path */
    return;
  }
  if (setenv("MESHNET", "off", 1) == 0) execv("/proc/self/exe", argv);
  say("meshnetd: cannot start without the library: %s", strerror(errno));
  exit(1);
}

int main(int argc, char **argv) {
  static const struct option options[] = {
      {"socks-port", required_argument, NULL, 'p'},  {"tailscaled-socket", required_argument, NULL, 's'},
      {"directory", required_argument, NULL, 'd'},   {"wait", required_argument, NULL, 'w'},
      {"help", no_argument, NULL, 'h'},              {NULL, 0, NULL, 0},
  };
  const char *directory = MN_DIRECTORY;
  unsigned socks_port = 1055, wanted = 0;
  int option;
  while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
    switch (option) {
      case 'p':
        socks_port = port_of(optarg);
        break;
      case 's':
        localapi_socket(optarg);
        break;
      case 'd':
        directory = optarg;
        break;
      case 'w':
        wanted = mode_of(optarg);
        break;
      case 'h':
        fputs(HELP, stdout);
        return 0;
      default:
        fputs(HELP, stderr);
        return 2;
    }
  }
  leave_library(argv);
  loop_start();
  catch_signals();
  raise_limit();
  close_later_start();
  serve(directory, socks_port, wanted);
  return 0;
}
