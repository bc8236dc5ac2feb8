-- A page of jobs, newest first, without results. ARGV: prefix, after id ('' is the first page), most, states ('' is any), kind
-- ('' is all), 'asc' for the oldest first, how many are looked at
-- Returns {{id, fields}, ...} and, where there may be more, the id of the last one looked at
local name = ARGV[5] == '' and P .. 'jobs' or P .. 'jobs:' .. ARGV[5]
local most, now, is_up = tonumber(ARGV[3]), now_ms(), ARGV[6] == 'asc'
local from = ARGV[2] == '' and (is_up and '-' or '+') or '(' .. ARGV[2]
local page, left, last = {}, tonumber(ARGV[7]), ''
while #page < most and left > 0 do
  local command, to = is_up and 'ZRANGEBYLEX' or 'ZREVRANGEBYLEX', is_up and '+' or '-'
  local ids = redis.call(command, name, from, to, 'LIMIT', 0, math.min(100, left))
  if #ids == 0 then return {page, ''} end
  for _, id in ipairs(ids) do
    left, from, last = left - 1, '(' .. id, id
    local h = redis.call('HMGET', P .. 'job:' .. id, 'state', 'gone')
    if not h[1] or (h[2] and tonumber(h[2]) <= now) then
      redis.call('ZREM', name, id)
    elseif ARGV[4] == '' or string.find(',' .. ARGV[4] .. ',', ',' .. h[1] .. ',', 1, true) then
      page[#page + 1] = {id, redis.call('HGETALL', P .. 'job:' .. id)}
      if #page == most then break end
    end
  end
end
return {page, last}
