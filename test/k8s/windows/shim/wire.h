/* The client's side of the wire of test/hnsfake/serve.go: one connection for the process, one call at a time. */
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

static int connect_fake(void) {
    char where[64];
    char *colon;
    WSADATA wsa;
    struct sockaddr_in to = {0};
    int on = 1;

    if (find_fake(where, sizeof where) != 0 || !(colon = strchr(where, ':')))
        return -1;
    *colon = 0;
    WSAStartup(MAKEWORD(2, 2), &wsa);
    conn = socket(AF_INET, SOCK_STREAM, 0);
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = inet_addr(where);
    to.sin_port = htons((unsigned short)atoi(colon + 1));
    if (conn == INVALID_SOCKET || connect(conn, (struct sockaddr *)&to, sizeof to) != 0)
        return -1;
    setsockopt(conn, IPPROTO_TCP, TCP_NODELAY, (char *)&on, sizeof on);
    return 0;
}

static int put(const void *p, int n) {
    const char *at = p;
    while (n > 0) {
        int k = send(conn, at, n, 0);
        if (k <= 0)
            return -1;
        at += k;
        n -= k;
    }
    return 0;
}

static int take(void *p, int n) {
    char *at = p;
    while (n > 0) {
        int k = recv(conn, at, n, 0);
        if (k <= 0)
            return -1;
        at += k;
        n -= k;
    }
    return 0;
}

static char *take_string(void) {
    uint32_t n;
    char *s;
    if (take(&n, 4) || !(s = malloc((size_t)n + 1)))
        return NULL;
    if (take(s, (int)n)) {
        free(s);
        return NULL;
    }
    s[n] = 0;
    return s;
}

/* call makes one call; words are UTF-8, the function first. The caller frees the reply with drop. */
static struct reply call(const char **words, uint32_t count) {
    struct reply r = {RPC_FAILED, 0, NULL, NULL, NULL};
    char *all;
    uint32_t i, size = 4, at = 4;

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
    AcquireSRWLockExclusive(&lock);
    if ((conn != INVALID_SOCKET || connect_fake() == 0) && put(all, (int)size) == 0 && take(&r.hr, 4) == 0 && take(&r.handle, 8) == 0) {
        r.id = take_string();
        r.out = take_string();
        r.record = take_string();
    }
    if (!r.record) {
        if (conn != INVALID_SOCKET)
            closesocket(conn);
        conn = INVALID_SOCKET;
        r.hr = RPC_FAILED;
    }
    ReleaseSRWLockExclusive(&lock);
    free(all);
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
