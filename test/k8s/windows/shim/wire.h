/* The client's side of the wire of test/hnsfake/serve.go: one connection for the calls of the process, one call at a time. */
#define WIN32_LEAN_AND_MEAN
#include <winsock2.h>
#include <windows.h>
#include <objbase.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RPC_FAILED ((HRESULT)0x800706BEL) /* RPC_S_CALL_FAILED: what a dead HNS gives */

struct reply {
    HRESULT hr;
    uint64_t handle;
    char *id, *out, *record;
};

static SRWLOCK lock = SRWLOCK_INIT; /* protects conn */
static SOCKET conn = INVALID_SOCKET;

/* Where the fake listens: services do not get the environment of the test, a file tells them. */
static int find_fake(char *where, DWORD size) {
    FILE *f;
    int found;

    if (GetEnvironmentVariableA("NKP_FAKE_HNS", where, size) != 0)
        return 0;
    if (!(f = fopen("C:\\nkp-fake-hns", "r")))
        return -1;
    found = fgets(where, (int)size, f) != NULL;
    fclose(f);
    return found ? 0 : -1;
}

static SOCKET connect_fake(void) {
    SOCKET s;
    char where[64];
    char *colon;
    WSADATA wsa;
    struct sockaddr_in to = {0};
    int on = 1;

    if (find_fake(where, sizeof where) != 0 || !(colon = strchr(where, ':')))
        return INVALID_SOCKET;
    *colon = 0;
    WSAStartup(MAKEWORD(2, 2), &wsa);
    s = socket(AF_INET, SOCK_STREAM, 0);
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = inet_addr(where);
    to.sin_port = htons((unsigned short)atoi(colon + 1));
    if (s == INVALID_SOCKET || connect(s, (struct sockaddr *)&to, sizeof to) != 0)
        return INVALID_SOCKET;
    setsockopt(s, IPPROTO_TCP, TCP_NODELAY, (char *)&on, sizeof on);
    return s;
}

static int put(SOCKET s, const void *p, int n) {
    const char *at = p;
    while (n > 0) {
        int k = send(s, at, n, 0);
        if (k <= 0)
            return -1;
        at += k;
        n -= k;
    }
    return 0;
}

static int take(SOCKET s, void *p, int n) {
    char *at = p;
    while (n > 0) {
        int k = recv(s, at, n, 0);
        if (k <= 0)
            return -1;
        at += k;
        n -= k;
    }
    return 0;
}

static char *take_string(SOCKET s) {
    uint32_t n;
    char *text;
    if (take(s, &n, 4) || !(text = malloc((size_t)n + 1)))
        return NULL;
    if (take(s, text, (int)n)) {
        free(text);
        return NULL;
    }
    text[n] = 0;
    return text;
}

/* take_reply returns 0 if there is one. */
static int take_reply(SOCKET s, struct reply *r) {
    if (take(s, &r->hr, 4) || take(s, &r->handle, 8))
        return -1;
    r->id = take_string(s);
    r->out = take_string(s);
    r->record = take_string(s);
    return r->record ? 0 : -1;
}

/* put_call sends the words of a call, UTF-8, the function first. */
static int put_call(SOCKET s, const char **words, uint32_t count) {
    char *all;
    uint32_t i, size = 4, at = 4;
    int failed;

    for (i = 0; i < count; i++)
        size += 4 + (uint32_t)strlen(words[i]);
    all = malloc(size);
    memcpy(all, &count, 4);
    for (i = 0; i < count; i++) {
        uint32_t n = (uint32_t)strlen(words[i]);
        memcpy(all + at, &n, 4);
        memcpy(all + at + 4, words[i], n);
        at += 4 + n;
    }
    failed = put(s, all, (int)size);
    free(all);
    return failed;
}

/* call makes one call. The caller frees the reply with drop. */
static struct reply call(const char **words, uint32_t count) {
    struct reply r = {RPC_FAILED, 0, NULL, NULL, NULL};

    AcquireSRWLockExclusive(&lock);
    if (conn == INVALID_SOCKET)
        conn = connect_fake();
    if (conn == INVALID_SOCKET || put_call(conn, words, count) || take_reply(conn, &r)) {
        if (conn != INVALID_SOCKET)
            closesocket(conn);
        conn = INVALID_SOCKET;
        r.hr = RPC_FAILED;
    }
    ReleaseSRWLockExclusive(&lock);
    return r;
}

static void drop(struct reply *r) {
    free(r->id);
    free(r->out);
    free(r->record);
}

static char *utf8(const WCHAR *w) {
    int n = w ? WideCharToMultiByte(CP_UTF8, 0, w, -1, NULL, 0, NULL, NULL) : 1;
    char *s = calloc(1, (size_t)n);
    if (w)
        WideCharToMultiByte(CP_UTF8, 0, w, -1, s, n, NULL, NULL);
    return s;
}

/* give hands a string to the caller, who frees it with CoTaskMemFree; an empty one is NULL. */
static void give(WCHAR **to, const char *s) {
    int n;
    if (!to)
        return;
    *to = NULL;
    if (!s || !*s)
        return;
    n = MultiByteToWideChar(CP_UTF8, 0, s, -1, NULL, 0);
    *to = CoTaskMemAlloc((size_t)n * sizeof(WCHAR));
    MultiByteToWideChar(CP_UTF8, 0, s, -1, *to, n);
}
