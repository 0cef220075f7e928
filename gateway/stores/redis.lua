-- One atomic step of the limit store in Redis; what the steps mean is in base.py, who calls is redis.py.
--
-- KEYS, one slot of a cluster:
--   clock     hash        reading, now: the last reading of the clock, and the store's own time
--   used      hash        window -> what ended leases count in it
--   fading    sorted set  window -> when its `used` counts no more
--   reserved  hash        window -> what living leases hold in it
--   leases    hash        lease id -> JSON, for each claim: dimension, window, cost, end of its period
--   expiries  sorted set  lease id -> when it expires
--   records   hash        lease id -> what it came to
--   outbox    sorted set  lease id -> from when on its record may be collected
-- ARGV: the step, a reading of the clock or "" for the server's own, how much to tidy up at most, then
-- what the step takes.
--
-- Times are in microseconds. A window is named "NUMBER LENGTH COUNTER"; concurrency and a period have
-- one, of length 0. The end of a period is "" for all else.
-- A number in Lua is a double: all that count here are whole and below 2^52 (as a time, the year 2112; a
-- policy's amounts end at 10^15), hence exact, as long as Lua does not write them: it keeps 14 digits.

local CLOCK, USED, FADING, RESERVED, LEASES, EXPIRIES, RECORDS, OUTBOX = unpack(KEYS)
local STEP, READING, MOST = unpack(ARGV)
local DIGIT = 2 ^ 26

local function whole(number)
  return string.format('%.0f', number)
end

local function named(number, length_us, counter)
  return whole(number) .. ' ' .. length_us .. ' ' .. counter
end

-- When what is used in a window counts no more: at the end of the next one.
local function faded_us(window)
  local number, length_us = window:match('^(%d+) (%d+) ')
  return (number + 2) * length_us
end

-- a * b, exact, in digits of 26 bits, the highest first.
local function product(a, b)
  local a_low, b_low = a % DIGIT, b % DIGIT
  local a_high, b_high = (a - a_low) / DIGIT, (b - b_low) / DIGIT
  local low = a_low * b_low
  local middle = a_high * b_low + a_low * b_high + math.floor(low / DIGIT)
  return {a_high * b_high + math.floor(middle / DIGIT), middle % DIGIT, low % DIGIT}
end

-- Whether a * b <= c * d.
local function at_most(a, b, c, d)
  local left, right = product(a, b), product(c, d)
  for i = 1, 3 do
    if left[i] ~= right[i] then
      return left[i] < right[i]
    end
  end
  return true
end

-- Move the store's own time on by what the clock did; a step back counts as no time.
local function advance()
  local reading_us = tonumber(READING)
  if not reading_us then
    local time = redis.call('TIME')
    reading_us = time[1] * 1000000 + time[2]
  end
  local last = redis.call('HMGET', CLOCK, 'reading', 'now')
  local now_us = reading_us
  if last[1] then
    now_us = last[2] + math.max(0, reading_us - last[1])
  end
  redis.call('HSET', CLOCK, 'reading', whole(reading_us), 'now', whole(now_us))
  return now_us
end

local now_us = advance()

-- End a lease; false if there is none. `charges` says by dimension what stays counted, nothing if it is
-- not there. Gives three for each period that is not over: counter, charge, what is used by now.
local function finish(lease_id, charges, record)
  local held = redis.call('HGET', LEASES, lease_id)
  if not held then
    return false
  end
  local periods = {}
  for _, one in ipairs(cjson.decode(held)) do
    local dimension, window, cost, ends_us = unpack(one)
    if redis.call('HINCRBY', RESERVED, window, whole(0 - cost)) == 0 then
      redis.call('HDEL', RESERVED, window)
    end
    local charge = charges[dimension] or 0
    local until_us = tonumber(ends_us) or faded_us(window)
    local used = 0
    if charge > 0 and until_us > now_us then
      used = redis.call('HINCRBY', USED, window, whole(charge))
      if until_us > tonumber(redis.call('ZSCORE', FADING, window) or 0) then
        redis.call('ZADD', FADING, whole(until_us), window)
      end
    end
    if ends_us ~= '' and until_us > now_us then
      periods[#periods + 1] = window:match('^0 0 (.*)$')
      periods[#periods + 1] = charge
      periods[#periods + 1] = used > 0 and used or tonumber(redis.call('HGET', USED, window) or 0)
    end
  end
  redis.call('HDEL', LEASES, lease_id)
  redis.call('ZREM', EXPIRIES, lease_id)
  if record and record ~= '' then
    redis.call('HSET', RECORDS, lease_id, record)
    redis.call('ZADD', OUTBOX, whole(now_us), lease_id)
  end
  return periods
end

local function due(key)
  return redis.call('ZRANGEBYSCORE', key, '-inf', whole(now_us), 'LIMIT', 0, MOST)
end

-- Give back what expired leases hold, and drop what counts no more: a bounded number of each.
local function tidy_up()
  for _, lease_id in ipairs(due(EXPIRIES)) do
    finish(lease_id, {})
  end
  local windows = due(FADING)
  if #windows > 0 then
    redis.call('HDEL', USED, unpack(windows))
    redis.call('ZREM', FADING, unpack(windows))
  end
end

-- The lease a step is about may be expired and not among those tidied up.
local function expire(lease_id)
  local expires_us = redis.call('ZSCORE', EXPIRIES, lease_id)
  if expires_us and tonumber(expires_us) <= now_us then
    finish(lease_id, {})
  end
end

-- How far into its window a claim is, and both windows that count for it, the current one first.
local function windows_of(claim)
  local length_us = tonumber(claim.length_us)
  if length_us == 0 then
    return 0, {named(0, claim.length_us, claim.counter), ''}
  end
  local into_us = math.fmod(now_us, length_us)
  local number = (now_us - into_us) / length_us
  return into_us, {
    named(number, claim.length_us, claim.counter),
    named(number - 1, claim.length_us, claim.counter),
  }
end

-- What stands in the current and in the previous window, and what of the current one is reserved.
local function counted(windows)
  local used = redis.call('HMGET', USED, unpack(windows))
  local reserved = redis.call('HMGET', RESERVED, unpack(windows))
  local held = tonumber(reserved[1] or 0)
  return (used[1] or 0) + held, (used[2] or 0) + (reserved[2] or 0), held
end

-- Whether what slides in the window leaves room for the cost; the previous window's part is rounded up.
local function fits(claim, current, previous, into_us)
  local room = claim.amount - claim.cost - current
  return room >= 0 and at_most(previous, claim.length_us - into_us, room, tonumber(claim.length_us))
end

local steps = {}

-- Lease id, microseconds to live, then six for each claim: dimension, counter, length, amount, cost,
-- microseconds to the end of its period. Gives the store's time, 1 if granted (0 refused, -1 if the id is
-- in use), and for each claim both counts and what of the current one is reserved.
function steps.reserve(lease_id, ttl_us)
  expire(lease_id)
  if redis.call('HEXISTS', LEASES, lease_id) == 1 then
    return {now_us, -1}
  end
  local reply, held = {now_us, 1}, {}
  for i = 6, #ARGV, 6 do
    local claim = {
      counter = ARGV[i + 1], length_us = ARGV[i + 2], amount = ARGV[i + 3], cost = ARGV[i + 4],
    }
    local into_us, windows = windows_of(claim)
    local current, previous, reserved = counted(windows)
    if not fits(claim, current, previous, into_us) then
      reply[2] = 0
    end
    for _, number in ipairs({current, previous, reserved}) do
      reply[#reply + 1] = number
    end
    local ends_us = ARGV[i + 5] ~= '' and whole(now_us + ARGV[i + 5]) or ''
    held[#held + 1] = {ARGV[i], windows[1], claim.cost, ends_us}
  end
  if reply[2] == 1 then
    for _, one in ipairs(held) do
      redis.call('HINCRBY', RESERVED, one[2], one[3])
    end
    redis.call('HSET', LEASES, lease_id, cjson.encode(held))
    redis.call('ZADD', EXPIRIES, whole(now_us + ttl_us), lease_id)
  end
  return reply
end

-- Microseconds to live, then lease ids. Those that are gone.
function steps.extend(ttl_us)
  local gone = {}
  for i = 5, #ARGV do
    expire(ARGV[i])
    if redis.call('HEXISTS', LEASES, ARGV[i]) == 0 then
      gone[#gone + 1] = ARGV[i]
    else
      redis.call('ZADD', EXPIRIES, whole(now_us + ttl_us), ARGV[i])
    end
  end
  return gone
end

-- Lease id, its record or "", then two for each dimension that stays charged: its name, how much. 1 and
-- what counts in periods, or 0 if it is gone.
function steps.finish(lease_id, record)
  expire(lease_id)
  local charges = {}
  for i = 6, #ARGV, 2 do
    charges[ARGV[i]] = tonumber(ARGV[i + 1])
  end
  local periods = finish(lease_id, charges, record)
  if not periods then
    return {0}
  end
  return {1, unpack(periods)}
end

-- How many at most, microseconds to hold them. Two for each: lease id, record.
function steps.collect(most, hold_us)
  local found = redis.call('ZRANGEBYSCORE', OUTBOX, '-inf', whole(now_us), 'LIMIT', 0, most)
  local reply = {}
  for _, lease_id in ipairs(found) do
    redis.call('ZADD', OUTBOX, whole(now_us + hold_us), lease_id)
    reply[#reply + 1] = lease_id
    reply[#reply + 1] = redis.call('HGET', RECORDS, lease_id)
  end
  return reply
end

-- Lease ids whose records are where they belong.
function steps.forget()
  for i = 4, #ARGV do
    redis.call('HDEL', RECORDS, ARGV[i])
    redis.call('ZREM', OUTBOX, ARGV[i])
  end
  return 1
end

-- The store's time, how much there is still to tidy up, and each window's used and reserved.
function steps.usage()
  return {
    now_us,
    redis.call('ZCOUNT', EXPIRIES, '-inf', whole(now_us))
      + redis.call('ZCOUNT', FADING, '-inf', whole(now_us)),
    redis.call('HGETALL', USED),
    redis.call('HGETALL', RESERVED),
  }
end

tidy_up()
return steps[STEP](ARGV[4], ARGV[5])
